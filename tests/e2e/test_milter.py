"""The milter door with a real Postfix, made from the snippet of config/postfix; also while the
daemon is killed.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import smtplib
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.e2e import daemon, postfix
from tests.e2e.peers import Client, Hop
from tests.e2e.ports import free_port
from tests.e2e.test_positions import body, fields, send
from tests.support.processes import children
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.skipif(
    shutil.which("postfix") is None, reason="needs Postfix: apt-get install postfix"
)

MAIL = {label: daemon.unseen(label, 4) for label in ("spam", "ham")}
ID = re.compile(r"id=([0-9a-v]{16})")


@dataclass
class MilterSite:
    """A Postfix that asks a daemon. smtp, rspamd: ports of other doors of that daemon, the first
    with `hop` behind it.
    """

    server: postfix.Postfix
    running: daemon.Daemon
    smtp: int
    rspamd: int
    hop: Hop

    def sent(self, raw: bytes, sender: bytes = b"<a@example.org>") -> bytes:
        """The message that arrives at anna's, with CRLF line ends."""
        with Client(self.server.smtp_port, 60) as client:
            client.hello()
            return self.arrives(
                lambda: client.begin(b"<anna@example.net>", sender=sender).data(stuffed(raw))
            )

    def arrives(self, sending: Callable[[], bytes]) -> bytes:
        """The message that arrives at anna's after this."""
        before = {path.name for path in (self.server.maildir() / "new").glob("*")}
        assert (reply := sending()).startswith(b"250 2.0.0 Ok: queued"), reply
        self.server.delivered(len(before) + 1)
        (new,) = [
            path for path in (self.server.maildir() / "new").glob("*") if path.name not in before
        ]
        return new.read_bytes()


def stuffed(raw: bytes) -> bytes:
    return (b"\r\n" + raw).replace(b"\r\n.", b"\r\n..")[2:]


def name_of(raw: bytes) -> str:
    match = ID.search(fields(raw, "X-Spamguard")[0])
    return match[1] if match else ""


@contextmanager
def asked(
    directory: Path, state: Path, more: str = "", main: str = "", action: str = "tempfail"
) -> Iterator[MilterSite]:
    """more: of the scanner's settings. main: lines of main.cf. action: what Postfix does while we
    are not there.
    """
    hop, smtp, rspamd = Hop(), free_port(), free_port()
    file = directory / "spamguard.yaml"
    with (
        postfix.running(
            "milter",
            main=f"local_header_rewrite_clients =\n{main}",
            replace={"default_action=tempfail": f"default_action={action}"},
        ) as server,
        hop.serving(),
    ):
        file.write_text(
            f"workers: 2\nlisteners:\n  - {{listen: 'smtp://127.0.0.1:{smtp}', position: "
            "standalone, hostname: mx.example.org,"
            f" next_hop: 'smtp://127.0.0.1:{hop.port}'}}\nscanners:\n"
            f"  - listen: rspamd://127.0.0.1:{rspamd}\n"
            f"  - listen: milter://127.0.0.1:{server.filter_port}\n{more}"
        )
        with daemon.running(state, "--config", str(file), port=server.filter_port) as running:
            yield MilterSite(server, running, smtp, rspamd, hop)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilterSite]:
    directory = tmp_path_factory.mktemp("milter")
    with asked(directory, daemon.taught(directory / "state")) as result:
        yield result


@pytest.mark.parametrize("label", ["spam", "ham"])
def test_mail_is_judged_and_tagged(place: MilterSite, label: str) -> None:
    forged = (
        b"X-Spam-Flag: NO\r\nX-Spam-Flag : NO\r\nx-spam-STATUS: No,\r\n score=-99\r\n"
        b"X-Spamguard: ham\r\nX-Spam-Flag:NO\r\n"
    )
    sent = MAIL[label][0]
    raw = place.sent(forged + sent.replace(b"\r\nSubject:", b"\r\nX-Bogosity: Ham\r\nSubject:", 1))
    assert fields(raw, "X-Spam-Flag") == (["YES"] if label == "spam" else [])
    assert [field[:5] for field in fields(raw, "X-Spam-Status")] == [
        "Yes, " if label == "spam" else "No, s"
    ]
    (ours,) = fields(raw, "X-Spamguard")
    assert re.fullmatch(r"(spam|ham|unsure); id=[0-9a-v]{16}; k=\w+; s=[\w-]+", ours)
    assert fields(raw, "X-Bogosity") == []
    assert body(raw) == body(sent)
    names = re.findall(rb"(?m)^([\w-]+):", raw.partition(b"\n\n")[0])
    ours_first = [b"X-Spam-Flag", b"X-Spam-Status", b"X-Spamguard", b"Received"][label != "spam" :]
    assert names[names.index(ours_first[0]) :][: len(ours_first)] == ours_first
    (line,) = place.running.lines(ours.split("id=")[1][:16])
    queue = re.search(r"queue=(\w+)", line)
    assert queue
    eventually(
        lambda: f"{queue[1]}: message-id" in place.server.log(),
        "Postfix tells of it by the same name",
    )
    assert "client=127.0.0.1" in line


ODD = {
    "no blank behind the colon": b"Subject:x\r\nFrom:a@example.org\r\n\r\ntext\r\n",
    "many blanks": b"Subject:   x  \r\nFrom:\ta@example.org\r\n\r\ntext\r\n",
    "folded": (
        b"Subject: one\r\n two\r\n\tthree\r\nFrom: a@example.org\r\nTo:\r\n anna@example.net\r\n"
        b"\r\ntext\r\n"
    ),
    "Received of others": (
        b"Received: from a by b; Fri, 20 Nov 2026 12:00:00 +0000\r\nSubject: x\r\n\r\ntext\r\n"
    ),
    "attachment": b"Subject: x\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: multipart/mixed; "
    b"boundary=b\r\n\r\n"
    b"--b\r\n\r\nhello\r\n"
    b"--b\r\nContent-Type: application/pdf; name=a.pdf\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\nAAAA\r\n--b--\r\n",
    "no header": b"\r\njust text\r\n",
    "8-bit in the header": b"Subject: gr\xc3\xbc\xc3\x9fe\r\n\r\ntext\r\n",
}


@pytest.mark.parametrize(
    "raw", [MAIL["spam"][1], MAIL["ham"][1], *ODD.values()], ids=["spam", "ham", *ODD]
)
def test_the_same_mail_by_other_doors_is_the_same_mail(place: MilterSite, raw: bytes) -> None:
    """Digest, verdict and features agree: the milter puts the message together
    exactly as it was.
    """
    first = place.running.row(name_of(place.sent(raw)))
    place.hop.forget()
    with Client(place.smtp) as client:
        client.hello()
        assert client.ask(
            b"XFORWARD NAME=localhost ADDR=127.0.0.1 HELO=client.example PROTO=ESMTP"
        ).startswith(b"250")
        assert client.begin(b"<anna@example.net>").data(stuffed(raw)).startswith(b"250")
    second = place.running.row(name_of(place.hop.messages[0]))
    assert (first.label, first.sender, first.recipients, first.subject) == (
        second.label,
        second.sender,
        second.recipients,
        second.subject,
    )
    assert first.digest == second.digest
    assert first.packed == second.packed
    assert first.log_odds == second.log_odds
    asking = http.client.HTTPConnection("127.0.0.1", place.rspamd, timeout=PATIENCE)
    asking.request("POST", "/checkv2", raw)
    answer = asking.getresponse().read()
    asking.close()
    assert answer.startswith(b"{")
    third = place.running.lines(f"listener=rspamd://127.0.0.1:{place.rspamd}")[-1]
    assert place.running.row(ID.search(third)[1]).digest == first.digest


def test_settings_are_taken_over_under_load_and_no_mail_is_refused(place: MilterSite) -> None:
    if shutil.which("smtp-source") is None:
        pytest.skip("needs smtp-source: apt-get install postfix")
    before, said = len(place.server.delivered(0)), len(place.server.log())
    line = [
        "smtp-source",
        "-s",
        "8",
        "-m",
        "600",
        "-l",
        "3000",
        "-d",
        "-f",
        "a@example.org",
        "-t",
        "anna@example.net",
    ]
    with subprocess.Popen([*line, f"127.0.0.1:{place.server.smtp_port}"]) as source:
        place.server.delivered(before + 20)
        place.running.process.send_signal(signal.SIGHUP)
        place.running.lines("has drained", 2)
        assert source.wait(PATIENCE) == 0
    messages = place.server.delivered(before + 600)
    assert all(len(fields(raw, "X-Spamguard")) == 1 for raw in messages[before:])
    told = place.server.log()[said:].splitlines()
    assert [one for one in told if "milter-reject" in one or "warning: milter" in one] == []


def test_refused_and_held_back_where_that_is_asked_for(state: Path, tmp_path: Path) -> None:
    """And by a socket that Postfix reaches from its own directory."""
    with postfix.running("milter") as server:
        reached = server.root / "queue" / "spamguard"
        reached.mkdir()
        file = tmp_path / "spamguard.yaml"
        held, refused = reached / "held.sock", reached / "refused.sock"
        doors = (
            (f"milter:{held}", 0.95, "quarantine"),
            (f"milter:{refused}", 0.95, "reject"),
            (f"milter://127.0.0.1:{server.filter_port}", 0.5, "defer"),
        )
        file.write_text(
            "workers: 1\nreject: {text: sorry}\nscanners:\n"
            + "".join(
                f"  - listen: {door}\n    rules:\n"
                f"      - {{when: spam, from_probability: {probability}, action: {action}}}\n"
                for door, probability, action in doors
            )
        )
        with daemon.running(state, "--config", str(file), port=server.filter_port):
            with pytest.raises(smtplib.SMTPDataError) as deferred:
                send(server.smtp_port, MAIL["spam"][0])
            assert (deferred.value.smtp_code, deferred.value.smtp_error[:5]) == (451, b"4.7.1")
            for name, code in (("refused", 550), ("held", 250)):
                line = f"smtpd_milters = unix:spamguard/{name}.sock"
                subprocess.run(["postconf", "-c", server.root / "etc", line], check=True)
                subprocess.run(
                    ["postfix", "-c", server.root / "etc", "reload"],
                    check=True,
                    capture_output=True,
                )
                eventually(lambda code=code: outcome(server, MAIL["spam"][0]) == code, name)
                if code == 550:
                    with pytest.raises(smtplib.SMTPDataError, match=r"\w{16} refused .*: sorry"):
                        send(server.smtp_port, MAIL["spam"][0])
            eventually(lambda: "!" in server.queue(), "a message that is held")
            send(server.smtp_port, MAIL["ham"][0])
            assert len(server.delivered(1)) == 1


def outcome(server: postfix.Postfix, raw: bytes) -> int:
    try:
        send(server.smtp_port, raw)
    except smtplib.SMTPResponseException as error:
        return error.smtp_code
    return 250


def killed_while_judging(running: daemon.Daemon, port: int, raw: bytes) -> bytes:
    """A mail server's reply to a message during whose judgement all workers are killed."""
    workers = children(running.process.pid, "daemon.worker")
    for scorer in (child for worker in workers for child in children(worker, "scorer")):
        os.kill(
            scorer, signal.SIGSTOP
        )  # so that a message is being judged; it ends with its worker
    with Client(port, 60) as client:
        client.hello().begin(b"<anna@example.net>")
        assert client.ask(b"DATA").startswith(b"354")
        client.send(stuffed(raw) + b".\r\n")
        time.sleep(0.5)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        return client.reply()


@pytest.mark.parametrize(("action", "code"), [("tempfail", 451), ("accept", 250)])
def test_killed_in_between(state: Path, tmp_path: Path, action: str, code: int) -> None:
    """Postfix decides itself what it does meanwhile. No mail is lost, and all works again once the
    daemon is back.
    """
    with asked(tmp_path, state, action=action) as place:
        place.sent(MAIL["ham"][0])
        assert (
            int(killed_while_judging(place.running, place.server.smtp_port, MAIL["ham"][1])[:3])
            == code
        )
        eventually(
            lambda: outcome(place.server, MAIL["ham"][2]) == 250, "mail goes on with new workers"
        )
        raws = place.server.delivered(3 if action == "accept" else 2)
        assert [len(fields(raw, "X-Spamguard")) for raw in raws].count(0) == (
            1 if action == "accept" else 0
        )


def test_killed_again_and_again_no_mail_is_lost_doubled_or_let_through(
    state: Path, tmp_path: Path
) -> None:
    with postfix.running("milter") as server, ThreadPoolExecutor(4) as senders:
        file = tmp_path / "spamguard.yaml"
        file.write_text(
            f"workers: 1\nscanners: [{{listen: 'milter://127.0.0.1:{server.filter_port}'}}]\n"
        )
        sending = [
            senders.submit(until_taken, server, b"Subject: number %d\r\n\r\ntext\r\n" % number)
            for number in range(120)
        ]
        for kills in (1, 2):
            with (
                suppress(Killed),
                daemon.running(state, "--config", str(file), port=server.filter_port) as running,
            ):
                running.lines("verdict=", 25 * kills)
                running.process.kill()
                running.process.wait()
                raise Killed
        with daemon.running(state, "--config", str(file), port=server.filter_port):
            tries = [task.result() for task in sending]
        raws = server.delivered(120)
    assert max(tries) > 1
    assert sorted(fields(raw, "Subject")[0] for raw in raws) == sorted(
        f"number {number}" for number in range(120)
    )
    assert {len(fields(raw, "X-Spamguard")) for raw in raws} == {1}


class Killed(Exception):  # noqa: N818  no error
    """The daemon was killed, by this test."""


def until_taken(server: postfix.Postfix, raw: bytes) -> int:
    """Send it as a mail server does, again after each 4xx reply; the number of attempts."""
    until = time.monotonic() + PATIENCE
    for times in count(1):
        if (code := outcome(server, raw)) == 250:
            return times
        assert code in (421, 451)
        assert time.monotonic() < until
        time.sleep(0.2)
    raise AssertionError
