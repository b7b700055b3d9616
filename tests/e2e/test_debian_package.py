"""The Debian package in a bare Debian 12: apt installs it, its units' commands serve as their
users, an upgrade keeps what was learnt, and a purge leaves nothing.

There is no systemd that could start the units. The test starts their commands, as their users and
with the directories and rights that the units ask for.
"""

from __future__ import annotations

import json
import shlex
import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler

from tests.e2e.test_setup import PREPARE
from tests.support.bare_debian import BareDebian, bare_debian, network_of, why_not
from tests.support.confined import options
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
UNITS = ("spamguard-watch.service", "spamguard.service")
SETTINGS = "/etc/spamguard/spamguard.yaml"
MAIL = b"From: a@offers.example\r\nTo: anna@example.net\r\nSubject: offer\r\n\r\nvelvet copper\r\n"
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, by the command that builds it."""
    place = tmp_path_factory.mktemp("package")
    line = [str(ROOT / "config/debian/build"), str(place)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd="/")
    if "No matching distribution" in done.stderr or "onnection" in done.stderr:
        pytest.skip("needs a package index that can be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = place.glob("spamguard_*.deb")
    return file


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Iterator[BareDebian]:
    """A bare Debian, into which apt has installed the package."""
    with bare_debian(tmp_path_factory) as machine:
        put(package, machine)
        machine.install(f"/root/{package.name}")
        yield machine


def put(package: Path, machine: BareDebian) -> None:
    (machine.root / "root" / package.name).write_bytes(package.read_bytes())


def newer(package: Path, place: Path) -> Path:
    """The same package with a higher version and one more file."""
    tree = place / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    control = tree / "DEBIAN/control"
    version = control.read_text().partition("Version: ")[2].partition("\n")[0]
    control.write_text(control.read_text().replace(f"Version: {version}", f"Version: {version}+1"))
    (tree / "usr/share/doc/spamguard/newer").touch()
    file = place / "newer.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, file],
        check=True,
        capture_output=True,
    )
    return file


def as_its_unit_says(machine: BareDebian, name: str) -> str:
    """The command of a unit for a shell: as its user, with its rights and directories."""
    unit = options(machine.root / "usr/lib/systemd/system" / name)
    (user,), (directory,) = unit["User"], unit["RuntimeDirectory"]
    rights = " ".join(word.removeprefix("CAP_").lower() for word in unit["AmbientCapabilities"])
    caps = f"--inh-caps=+{rights} --ambient-caps=+{rights}" if rights else ""
    return (
        f"install -d -m {unit['RuntimeDirectoryMode'][0]} -o {user} -g {user} /run/{directory}; "
        f"umask {unit['UMask'][0]}; setpriv --reuid {user} --regid {user} --init-groups {caps} "
        f"env {shlex.quote(unit['Environment'][0])} {unit['ExecStart'][0]}"
    )


@contextmanager
def serving(machine: BareDebian, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Both services, until they are asked to end."""
    broker, daemon = (as_its_unit_says(machine, name) for name in UNITS)
    script = f"({broker}) & ({daemon}) & trap 'kill 0; wait' TERM; wait"
    server = machine.start(["sh", "-c", script], log)
    try:
        eventually(lambda: "serving smtp on 127.0.0.1:10025" in log.read_text(), "it serves")
        yield server
    finally:
        server.kill()
        server.wait(PATIENCE)


def status(machine: BareDebian) -> dict[str, object]:
    text = machine.run("spamguard", "status", "--json", network=False)
    return dict(json.loads(text))


class Arrived(MessageHandler):
    """Keeps what the next hop gets."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def handle_message(self, message: Message) -> None:
        self.messages.append(message)


def sent(server: subprocess.Popen[bytes], data: bytes) -> Message:
    """The message as the next hop gets it."""
    handler = Arrived()
    with network_of(server):
        next_hop = Controller(handler, hostname="127.0.0.1", port=10026)
        next_hop.start()
        try:
            with smtplib.SMTP("127.0.0.1", 10025, timeout=PATIENCE) as client:
                client.sendmail("a@offers.example", ["anna@example.net"], data)
        finally:
            next_hop.stop()
    (message,) = handler.messages
    return message


def mentions(machine: BareDebian) -> set[str]:
    """Paths named after the package, but for those of dpkg's and apt's own records."""
    records = ("var/lib/dpkg/", "var/lib/apt/", "var/cache/", "var/log/", "root/", "usr/share/doc/")
    paths = {
        str(path.relative_to(machine.root))
        for path in machine.root.rglob("*spamguard*")
        if not path.is_relative_to(machine.root / "proc")
    }
    return {path for path in paths if not path.startswith(records)}


def test_its_libraries_are_there(debian: BareDebian) -> None:
    """In what it depends on, or in the package itself."""
    find = "find /opt/spamguard -name '*.so' ! -path '*.libs/*' -exec ldd {} +"
    linked = debian.run("sh", "-c", find)
    assert "libc.so.6 => /lib/" in linked
    assert [line for line in linked.splitlines() if "not found" in line] == []


def test_its_units_are_enabled_and_its_pages_are_there(debian: BareDebian) -> None:
    assert debian.run("systemctl", "is-enabled", *UNITS, "spamguard.socket") == 3 * "enabled\n"
    assert debian.run("spamguard", "--version").endswith("(kernel: compiled)\n")
    assert debian.run("spamguard", "check").endswith("# ok\n")  # root's is the service's
    assert (debian.root / "usr/share/man/man1/spamguard.1.gz").is_file()


def test_it_learns_is_upgraded_and_is_purged(
    debian: BareDebian, package: Path, tmp_path: Path
) -> None:
    maildir = debian.root / "home/anna/Maildir"
    for folder in ("cur", "new", "tmp", ".Junk/cur", ".Junk/new", ".Junk/tmp"):
        (maildir / folder).mkdir(parents=True, mode=0o700)
    name = f"cur/1,S={len(MAIL)}:2,S"  # with its size, as else it may still be written
    (maildir / name).write_bytes(MAIL)
    log = tmp_path / "log"
    with serving(debian, log) as server:
        assert sent(server, MAIL)["X-Spam-Status"].endswith("tests=SPAMGUARD_UNSURE")
        eventually(lambda: "Maildir: seen for the first time" in log.read_text(), "it is seen")
        (maildir / name).rename(maildir / ".Junk" / name)
        eventually(lambda: "class=spam" in log.read_text(), "the move is learnt")
    learnt = status(debian)["classes"]

    with (debian.root / SETTINGS[1:]).open("a") as settings:
        settings.write("# ours\n")
    put(newer(package, tmp_path), debian)
    debian.run("dpkg", "--install", "/root/newer.deb", network=False)
    assert (debian.root / "usr/share/doc/spamguard/newer").is_file()
    assert (debian.root / SETTINGS[1:]).read_text().endswith("# ours\n")
    with serving(debian, log.with_name("upgraded")) as server:
        assert sent(server, MAIL)["X-Spam-Status"].startswith("No, ")
    assert status(debian)["classes"] == learnt

    debian.run("apt-get", "remove", "-y", "spamguard", network=False)
    assert not (debian.root / "opt/spamguard").exists()
    assert (debian.root / "var/lib/spamguard/key").is_file()
    assert (debian.root / SETTINGS[1:]).is_file()

    debian.run("apt-get", "purge", "-y", "spamguard", network=False)
    assert mentions(debian) == set()
    assert "spamguard" not in (debian.root / "etc/passwd").read_text()
    assert "spamguard" not in (debian.root / "etc/group").read_text()


# Postfix, which delivers by Dovecot, and both running.
SERVERS = PREPARE.partition("ip link set lo up\n")[2].partition("cp systemd/")[0]
LEAVING = """
set -e
await() {
    for _ in $(seq 600); do
        if eval "$1"; then return; fi
        sleep 0.1
    done
    echo "never: $1"
    cat /run/*.log /var/log/postfix.log /var/log/dovecot.log
    exit 1
}
send() {
    python3 - "$1" <<END
import smtplib, sys
text = f"Subject: {sys.argv[1]}\\n\\nFor your street.\\n"
smtplib.SMTP("127.0.0.1", 25).sendmail("post@roofs.example", ["anna@example.net"], text)
END
}
arrived() { grep -ls "^Subject: $1" /home/anna/Maildir/new/*; }
spamguard setup --apply </dev/null || true # no daemon runs yet
(BROKER) 2>/run/broker.log &
(DAEMON) 2>/run/daemon.log &
await 'grep -q "serving smtp" /run/daemon.log'
send first
await 'arrived first >/dev/null'
grep -q "^X-Spamguard: unsure" $(arrived first)
kill -- $(jobs -p)
wait
send waits
await 'mailq | grep -q "Connection refused"'
printf 'plugin {\\n  ours = spamguard\\n}\\n' >/etc/dovecot/conf.d/99-ours.conf
apt-get remove -y spamguard 2>&1 | tee /run/told
[ -d /opt/spamguard ] && echo "--- refused"
grep "^/etc/dovecot/conf.d/99-ours.conf:2:.*spamguard" /run/told
rm /etc/dovecot/conf.d/99-ours.conf
apt-get purge -y spamguard
echo "--- purged"
await 'arrived waits >/dev/null'
doveadm stop
dovecot
postfix reload
send last
await 'arrived last >/dev/null'
grep -c "^X-Spamguard" $(arrived last) || true
getent passwd spamguard || echo "--- nobody"
"""


def test_the_mail_server_works_without_it(
    tmp_path_factory: pytest.TempPathFactory, package: Path
) -> None:
    """Nothing of it is in the way, and mail that waited for it is delivered."""
    with bare_debian(tmp_path_factory) as machine:
        put(package, machine)
        machine.install(
            f"/root/{package.name}", "postfix", "dovecot-lmtpd", "dovecot-imapd", "dovecot-sieve"
        )
        broker, daemon = (as_its_unit_says(machine, name) for name in UNITS)
        script = SERVERS + LEAVING.replace("BROKER", broker).replace("DAEMON", daemon)
        told = machine.run("bash", "-c", script, network=False)
        assert [line for line in told.splitlines() if line.startswith("--- ")] == [
            "--- refused",
            "--- purged",
            "--- nobody",
        ], told
        assert "\n0\n--- nobody\n" in told, "no verdict in the last message"
