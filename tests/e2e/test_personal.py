"""Two users who disagree get the same mail. Each gets their own verdict where the next hop replies
for each recipient.
"""

from __future__ import annotations

import json
import smtplib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spamguard.proxy.history import History
from tests.e2e import daemon, dovecot
from tests.e2e.daemon import Daemon
from tests.e2e.moving import all_seen, mail_program, move, needs_dovecot, ok, said, sibling
from tests.e2e.ports import free_port
from tests.e2e.test_positions import body, fields
from tests.support.waiting import PATIENCE, eventually

TAUGHT = range(100, 115)  # of a campaign: spam for anna, ham for ben
ANNA, BEN = "anna@example.net", "ben@example.net"
AT_ALL = "personal: true\naliases: {sales@example.net: anna}\n"


@contextmanager
def running(state: Path, doors: dict[int, str], hop: str, more: str) -> Iterator[Daemon]:
    """The daemon with doors, by port the protocol of each, before one next hop."""
    file = state.parent / "spamguard.yaml"
    listeners = [
        (
            f"  - {{listen: '{protocol}://127.0.0.1:{port}', position: standalone, next_hop: "
            f"'{hop}'}}\n"
        )
        for port, protocol in doors.items()
    ]
    file.write_text(f"{more}listeners:\n{''.join(listeners)}")
    with daemon.running(state, "--config", str(file), port=next(iter(doors))) as running:
        yield running


def send_to_all(port: int, raw: bytes, *recipients: str) -> list[bytes]:
    """One LMTP transaction; the reply to each recipient."""
    with smtplib.LMTP("127.0.0.1", port, timeout=PATIENCE) as client:
        client.ehlo()
        client.mail("news@offers.example")
        for recipient in recipients:
            assert client.rcpt(recipient)[0] == 250
        client.docmd("DATA")
        client.send(raw + b".\r\n")
        replies = [client.getreply() for _ in recipients]
    assert [code for code, _ in replies] == [250] * len(recipients)
    return [text for _, text in replies]


def remembered(state: Path, name: str) -> bool:
    with History.open(state / "history.sqlite", 64 << 20, 30) as history:
        return history.find(name) is not None


def name_of(raw: bytes) -> str:
    """The id of a copy."""
    return fields(raw, "X-Spamguard")[0].split("id=")[1][:16]


@needs_dovecot
def test_mail_moved_to_junk_becomes_spam_for_that_user_only(state: Path) -> None:
    lmtp, smtp = free_port(), free_port()
    with dovecot.running() as server:
        watch = f"{AT_ALL}watch: ['{server.root}/mail/*']\n"
        with running(
            state, {lmtp: "lmtp", smtp: "smtp"}, f"lmtp:{server.lmtp_socket}", watch
        ) as log:
            for number in TAUGHT:
                send_to_all(lmtp, sibling(number), ANNA, BEN)
            for user in ("anna", "ben"):
                all_seen(state, server.root / "mail" / user, len(TAUGHT))
            with mail_program(server) as anna, mail_program(server, "ben") as ben:
                ok(ben.create("Archive"))
                for number in TAUGHT:
                    move(anna, number, "INBOX", "Junk")
                log.lines("lesson user=", len(TAUGHT))
                # teaches all others nothing any more; mixed with hers, steps would stay until it is
                # settled
                for number in TAUGHT:
                    move(ben, number, "INBOX", "Archive")
            log.lines("lesson user=", 2 * len(TAUGHT))
            assert said(state) == {
                "anna": " ".join(["spam"] * len(TAUGHT)),
                "ben": " ".join(["ham"] * len(TAUGHT)),
            }

            texts = send_to_all(lmtp, sibling(1), ANNA, BEN, "sales+x@example.net")
            assert b"ben" in texts[1]
            (hers,), (his,), (sales,) = (
                server.delivered("anna"),
                server.delivered("ben"),
                server.delivered("sales"),
            )
            assert [fields(raw, "X-Spam-Flag") for raw in (hers, his, sales)] == [
                ["YES"],
                [],
                ["YES"],
            ]
            assert body(hers) == body(his) == body(sibling(1))
            assert name_of(hers) == name_of(sales) != name_of(his)
            (line,) = log.lines(f"id={name_of(hers)} ")
            assert "verdict=spam" in line
            assert "personal=anna:spam" in line
            eventually(lambda: remembered(state, name_of(hers)), "it is in the history")
            told = json.loads(daemon.command(state, "explain", "--json", name_of(hers)))["then"]
            assert (told["label"], told["personal"], told["to"]) == (
                "spam",
                {"anna": "spam"},
                [ANNA, "sales+x@example.net"],
            )

            with smtplib.SMTP("127.0.0.1", smtp, timeout=PATIENCE) as client:
                refused = client.sendmail("news@offers.example", [ANNA, BEN], sibling(2))
                assert {one: code for one, (code, _) in refused.items()} == {BEN: 452}
                assert client.sendmail("news@offers.example", [BEN], sibling(2)) == {}
            assert fields(server.delivered("anna", 2)[-1], "X-Spam-Flag") == ["YES"]
            assert [fields(raw, "X-Spam-Flag") for raw in server.delivered("ben", 2)] == [[], []]
