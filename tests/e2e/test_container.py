"""The images of config/container, built line by line without a registry of images, and run together
as compose.yaml says: mail comes to Postfix, spamguard judges it, Dovecot files it, a move teaches.

A bare Debian stands for their base, and one network for that of the containers.
"""

from __future__ import annotations

import imaplib
import smtplib
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from tests.support.bare_debian import bare_debian, network_of, why_not
from tests.support.containerfiles import Image, build
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "config/container"
COMPOSE = yaml.safe_load((PLACE / "compose.yaml").read_text())
MAIL = b"From: a@offers.example\r\nTo: anna@example.org\r\nSubject: offer\r\n\r\nvelvet copper\r\n"
needs_debian = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Image]]:
    with ExitStack() as stack:

        def built(name: str) -> dict[str, Image]:
            return build(PLACE / name, ROOT, lambda: bare_debian(tmp_path_factory), stack)

        mail = built("mail.Containerfile")
        yield {
            "dovecot": mail["dovecot"],
            "spamguard": built("Containerfile")[""],
            "postfix": mail["postfix"],
        }


@contextmanager
def running(images: dict[str, Image], place: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The services of compose.yaml, spamguard first: its network is that of the others."""
    (place / "mail").mkdir()
    (place / "mail").chmod(
        0o777
    )  # as the volume has it from the image: for the account of all mail
    (place / "users").write_text("anna@example.org:{PLAIN}secret\n")
    servers: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, image in images.items():
            first = next(iter(servers.values()), None)
            servers[name] = start(name, image, place, first)
        yield servers
    finally:
        for server in servers.values():
            server.kill()
            server.wait(PATIENCE)


def start(
    name: str, image: Image, place: Path, beside: subprocess.Popen[bytes] | None
) -> subprocess.Popen[bytes]:
    service = COMPOSE["services"][name]
    root = image.debian.root
    mounts = ['mount --rbind "$0" "$0"']
    for volume in service["volumes"]:
        source, target, *_ = volume.removeprefix("./").split(":")
        if not (place / source).exists():  # as the image has it
            subprocess.run(["cp", "-a", root / target[1:], place / source], check=True)
        if (place / source).is_file():
            (root / target[1:]).touch()
        mounts.append(f'mount --bind {place / source} "$0"{target}')
    if service.get("read_only"):
        mounts.append('mount -o remount,bind,ro "$0"')
    with (root / "etc/hosts").open("a") as hosts:
        hosts.write("127.0.0.1 localhost spamguard dovecot\n")
    variables = [f"{key}={value}" for key, value in image.environment.items()]
    line = ["env", *variables, *image.entry, *image.command]
    return image.debian.start(line, place / f"{name}.log", "; ".join(mounts), image.user, beside)


def healthy(server: subprocess.Popen[bytes], image: Image) -> bool:
    """By the command of HEALTHCHECK, beside the server."""
    enter = ["nsenter", f"--net=/proc/{server.pid}/ns/net"]
    variables = [f"{key}={value}" for key, value in image.environment.items()]
    line = image.debian.command("env", *variables, *image.health, user=image.user)
    return subprocess.run([*enter, *line], capture_output=True, check=False).returncode == 0


@needs_debian
def test_mail_passes_and_a_move_teaches(images: dict[str, Image], tmp_path: Path) -> None:
    with running(images, tmp_path) as servers:
        log = tmp_path / "spamguard.log"
        eventually(lambda: healthy(servers["spamguard"], images["spamguard"]), "it is healthy")
        assert (tmp_path / "state/key").stat().st_uid == 5000
        with network_of(servers["spamguard"]):
            eventually(lambda: sends(MAIL), "Postfix takes it")
            with imaplib.IMAP4("127.0.0.1", 143) as client:
                client.login("anna@example.org", "secret")
                eventually(lambda: client.select("INBOX")[1] == [b"1"], "it is delivered")
                (_, header), *_ = client.fetch("1", "BODY[HEADER.FIELDS (X-Spam-Status)]")[1]
                assert header.strip().endswith(b"tests=SPAMGUARD_UNSURE")
                eventually(lambda: "seen for the first time" in log.read_text(), "it is seen")
                client.create("Junk")
                client.copy("1", "Junk")
                client.store("1", "+FLAGS", "\\Deleted")
                client.expunge()
        eventually(lambda: "class=spam" in log.read_text(), "the move is learnt")


def sends(data: bytes) -> bool:
    """False: nobody listens yet, or Postfix asks Dovecot about the recipient, and a sender tries
    again.
    """
    try:
        with smtplib.SMTP("127.0.0.1", 25, timeout=PATIENCE) as client:
            client.sendmail("a@offers.example", ["anna@example.org"], data)
    except (ConnectionError, smtplib.SMTPServerDisconnected, smtplib.SMTPRecipientsRefused):
        return False
    return True
