"""Moving mail teaches: by real IMAP clients in a real Dovecot, by renames, and while the daemon is
down.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e import dovecot
from tests.e2e.moving import (
    MOVED,
    all_seen,
    mail_program,
    move,
    needs_dovecot,
    ok,
    said,
    send,
    sibling,
    watching,
)
from tests.e2e.test_positions import fields


@needs_dovecot
def test_a_move_changes_the_verdict_on_the_siblings(state: Path) -> None:
    with dovecot.running() as server, watching(state, server) as (running, port):
        box = server.root / "mail" / "anna"
        send(port, *map(sibling, MOVED))
        assert not any(fields(raw, "X-Spam-Flag") for raw in server.delivered("anna", len(MOVED)))
        all_seen(state, box, len(MOVED))
        with mail_program(server) as client:
            for number in MOVED:
                move(client, number, "INBOX", "Junk")
            text = "lesson user=anna from='INBOX' to='Junk' class=spam"
            lessons = running.lines(text, len(MOVED))
            assert "offers" not in lessons[0]
            deliveries = running.lines(" verdict=", len(MOVED))
            assert set(map(message_name, lessons)) == set(map(message_name, deliveries))
            send(port, sibling(2))
            (second,) = server.delivered("anna")
            assert fields(second, "X-Spam-Flag") == ["YES"]
            all_seen(state, box, 1)
            ok(client.create("Archive"))
            for number in MOVED:
                move(client, number, "Junk", "INBOX")
            move(client, 2, "INBOX", "Archive")
            running.lines("class=ham", len(MOVED) + 1)
            send(port, sibling(3))
            running.lines("verdict=ham")
        assert said(state) == {"anna": "ham ham ham ham"}


def message_name(line: str) -> str:
    """What a line of the log calls the message."""
    named = re.search(r" message=(\w{12})\b", line)
    assert named, line
    return named[1]
