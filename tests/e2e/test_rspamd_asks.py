"""Debian's rspamd behind Postfix, asking our daemon by the snippet of config/rspamd."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e import daemon, postfix
from tests.e2e.moving import all_seen, sibling, votes
from tests.e2e.peers import Client
from tests.e2e.ports import free_port, open_directory, wait_for_port
from tests.e2e.scanning import HAM, IN_FORCE_SECONDS, SPAM
from tests.e2e.test_milter import stuffed
from tests.e2e.test_positions import fields
from tests.support.recipes import snippet
from tests.support.waiting import COMMAND_SECONDS, eventually

pytestmark = pytest.mark.skipif(
    not (shutil.which("rspamd") and shutil.which("postfix")),
    reason="needs rspamd and Postfix: apt-get install --no-install-recommends rspamd postfix",
)

# No server is asked for names here.
OPTIONS = """
dns { nameserver = ["127.0.0.1:9"]; timeout = 0.1s; retransmits = 1; }
"""
PROXY = 'bind_socket = "127.0.0.1:{}";\nupstream "local" {{ default = yes; self_scan = yes; }}\n'


@dataclass(frozen=True, slots=True)
class Site:
    """A Postfix that asks an rspamd that asks a daemon. worker: rspamd's port for `rspamc`."""

    server: postfix.Postfix
    running: daemon.Daemon
    worker: int
    log: Path

    def arrives(self, raw: bytes) -> bytes:
        """The message as it is delivered to anna."""
        before = self.server.delivered(0)
        with Client(self.server.smtp_port, 60) as client:
            client.hello()
            reply = client.begin(b"<anna@example.net>").data(stuffed(raw))
        assert reply.startswith(b"250 2.0.0 Ok: queued"), reply
        (new,) = set(self.server.delivered(len(before) + 1)) - set(before)
        return new

    def judged(self, raw: bytes) -> dict[str, float]:
        """Our symbols in rspamd's own verdict, and its score."""
        done = subprocess.run(
            ["rspamc", "-h", f"127.0.0.1:{self.worker}", "--json", "symbols"],
            input=raw,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=True,
        )
        answer = json.loads(done.stdout)
        symbols = {name: each["score"] for name, each in answer["symbols"].items()}
        return {name: score for name, score in symbols.items() if name.startswith("SPAMGUARD_")}


@contextmanager
def rspamd(ours: int, milter: int, worker: int) -> Iterator[Path]:
    """Debian's, as it is configured there, but for ports and the snippet; its log."""
    with open_directory() as root:
        for name in ("db", "run", "local.d", "override.d"):
            (root / name).mkdir()
            (root / name).chmod(0o777)
        local = root / "local.d"
        (local / "options.inc").write_text(OPTIONS)
        (local / "logging.inc").write_text('type = "console";\n')
        (local / "worker-normal.inc").write_text(f'bind_socket = "127.0.0.1:{worker}";\n')
        (local / "worker-controller.inc").write_text("count = -1;\n")
        (local / "worker-proxy.inc").write_text(PROXY.format(milter))
        text = snippet("rspamd/spamguard.lua", **{"127.0.0.1:11343": f"127.0.0.1:{ours}"})
        (local / "rspamd.lua").write_text(text)
        places = {"LOCAL_CONFDIR": root, "DBDIR": root / "db", "RUNDIR": root / "run"}
        command = ["rspamd", "--no-fork", "--insecure", "--user", "_rspamd", "--group", "_rspamd"]
        command += [word for name, path in places.items() for word in ("--var", f"{name}={path}")]
        log = root / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdout=output, stderr=output) as it,
        ):
            try:
                wait_for_port(milter)
                wait_for_port(worker)
                yield log
            finally:
                it.terminate()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("rspamd")
    ours, worker, file = free_port(), free_port(), root / "spamguard.yaml"
    with ExitStack() as stack:
        server = stack.enter_context(
            postfix.running("milter", main="milter_default_action=accept\n")
        )
        log = stack.enter_context(rspamd(ours, server.filter_port, worker))
        file.write_text(
            f"scanners:\n  - listen: rspamd://127.0.0.1:{ours}\n"
            f"watch:\n  - maildir: {server.maildir()}\n    user: anna@example.net\n"
        )
        state = daemon.taught(root / "state", 800)
        running = stack.enter_context(daemon.running(state, "--config", str(file), port=ours))
        yield Site(server, running, worker, log)


@pytest.mark.parametrize("label", ["spam", "ham"])
def test_verdicts_reach_rspamd_the_message_and_the_history(place: Site, label: str) -> None:
    wrong = {"spam": "ham", "ham": "spam"}[label]
    for number, raw in enumerate({"spam": SPAM, "ham": HAM}[label]):
        (symbol, points), *more = place.judged(raw).items()
        assert not more
        assert symbol != f"SPAMGUARD_{wrong.upper()}"
        assert 0 < points <= 8 if label == "spam" else -8 <= points < 0
        forged = b"X-Spamguard: ham; id=0000000000000000; k=aaaaaaaa; s=a\r\n"
        (field,) = fields(place.arrives(forged + raw), "X-Spamguard")
        assert field.partition(";")[0] in (label, "unsure"), number
        row = place.running.row(field.split("id=")[1][:16])
        assert (row.sender, list(row.recipients)) == ("a@example.org", ["anna@example.net"])


def test_a_move_teaches(place: Site) -> None:
    raw = place.arrives(sibling(1))
    inbox = place.server.maildir()
    all_seen(place.running.state, inbox, len(list((inbox / "new").iterdir())))
    (file,) = [path for path in (inbox / "new").iterdir() if path.read_bytes() == raw]
    junk = inbox / ".Junk" / "cur"
    for name in ("cur", "new", "tmp"):
        (junk.parent / name).mkdir(parents=True)
        shutil.chown(junk.parent / name, "nobody")
    file.rename(junk / f"{file.name}:2,S")
    eventually(
        lambda: [vote.label for vote in votes(place.running.state)] == ["spam"],
        "the move is a lesson",
        IN_FORCE_SECONDS,
    )


def test_mail_goes_on_while_nobody_answers(place: Site) -> None:
    """And the log says so once. Last, because it ends the daemon."""
    assert place.running.stop() == 0
    for raw in SPAM[:3]:
        assert place.judged(raw) == {}
        assert not fields(place.arrives(raw), "X-Spamguard")
    said = re.findall(r"spamguard does not answer: [^;]+", place.log.read_text())
    assert 1 <= len(said) <= 2, said  # in each of two processes
