"""`quarantine`: held messages are shown, released once, taught as ham, deleted if asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spamguard.delivery.quarantine import DIRECTORY, Quarantine
from spamguard.keys import new_id
from spamguard.smtp.envelope import Client, Envelope, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.unit.cli.conftest import lessons, new_mail
from tests.unit.cli.test_status_daemon import saying

FIRST, SECOND = new_id(1.7e9, b"abcd"), new_id(1.7e9 + 60, b"abcd")
RAW = b"X-Spam-Flag: YES\r\nX-Spamguard: spam\r\nX-Folded: a\r\n\tb\r\n" + new_mail("ham", seed=5)[
    0
].replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
WROTE = "Samuel Thorne <salbapel@wilorcorsal.example>"  # as its From says


def hold(state, name, raw=RAW, sender="a@example.org", recipients=("b@x", "c@x")):
    spool = Spool(state)
    spool.write(raw)
    envelope = Envelope(Sender(sender), tuple(map(Recipient, recipients)), Client("192.0.2.1"))
    Quarantine(state / DIRECTORY).store(name, SpoolView(b"", spool, 0), envelope, "spam", 1.7e9)
    spool.close()


@pytest.fixture
def held(taught):
    hold(taught, FIRST)
    hold(taught, SECOND, sender="\x1b[31m\udcff")
    return taught


def delivered(maildir):
    return (
        sorted(path.read_bytes() for path in (maildir / "new").iterdir())
        if maildir.exists()
        else []
    )


def test_a_note_if_the_list_is_cut(run, held, monkeypatch):
    monkeypatch.setattr("spamguard.delivery.quarantine.MAX_ENTRIES", 1)
    done = run(held, "quarantine", "list")
    assert done.out.startswith(SECOND)
    assert len(done.out.splitlines()) == 1
    assert done.err == "spamguard: note: there are older ones, which the page shows\n"


def test_control_characters_in_from_are_replaced(run, taught):
    hold(taught, FIRST, b"From: =?utf-8?q?=1B[31m=C2=9B=0A=E2=80=AE?= <x@\x1b.example>\r\n\r\n")
    (line,) = run(taught, "quarantine", "list").out.splitlines()
    assert line.isprintable()
    assert "<x@\ufffd.example>, envelope sender <a@example.org> to b@x" in line


def test_an_empty_quarantine(run, tmp_path):
    done = run(tmp_path, "quarantine", "list")
    assert (done.status, done.out, done.err) == (0, "", "spamguard: note: nothing is held there\n")
    assert run(tmp_path, "quarantine", "list", "--json").out == ""
    assert list(tmp_path.iterdir()) == []
    for action in (
        ["list"],
        ["show", FIRST],
        ["delete", FIRST],
    ):  # of the daemon's nothing is said so
        assert run(tmp_path / "none", "quarantine", *action).failed("no filter there", "--state")


def test_show(run, held):
    done = run(held, "quarantine", "show", SECOND)
    assert done.status == 0
    assert "waiting   b@x, c@x\n" in done.out
    assert f"author    {WROTE}\n" in done.out
    assert "\n\nX-Spam-Flag: YES\nX-Spamguard: spam\nX-Folded: a\n        b\n" in done.out
    assert "\x1b" not in done.out
    (file,) = re.findall("(?m)^file +(.*)$", run(held, "quarantine", "show", FIRST).out)
    assert Path(file).read_bytes() == RAW


def test_messages_are_not_released_to_the_daemon_itself(run, held):
    answer = {"listeners": [{"listen": "smtp://0.0.0.0:25", "next_hop": "smtp://127.0.0.1:10026"}]}
    with saying(held, answer):
        done = run(held, "quarantine", "release", FIRST, "--next-hop", "smtp://127.0.0.1:25")
    assert done.failed(
        "spamguard itself listens there, and would hold them once more: hand them to "
        "smtp://127.0.0.1:10026"
    )
    for entry in run(held, "quarantine", "list", "--json").lines:
        assert entry["waiting"] == ["b@x", "c@x"]


def test_releasing_hands_on_once_and_teaches(run, held, counts, tmp_path):
    where = f"maildir:{tmp_path / 'Maildir'}"
    done = run(held, "quarantine", "release", FIRST, "--next-hop", where)
    assert (done.status, done.out) == (0, f"{FIRST} released to 2 recipients, learned as ham\n")
    assert len(delivered(tmp_path / "Maildir")) == 2
    assert lessons(held) == {**counts, "ham": counts["ham"] + 1}
    again = run(held, "quarantine", "release", FIRST, "--next-hop", where)
    assert (again.status, again.out) == (0, f"{FIRST} had been released before\n")
    assert len(delivered(tmp_path / "Maildir")) == 2
    entries = run(held, "quarantine", "list", "--json").lines
    assert {entry["id"]: entry["released"] for entry in entries} == {FIRST: True, SECOND: False}


def test_a_next_hop_that_is_down(run, held, counts, tmp_path):
    done = run(held, "quarantine", "release", FIRST, "--next-hop", f"lmtp:{tmp_path / 'nobody'}")
    assert done.status == 1
    assert done.out.startswith(f"{FIRST} not released to 2 recipients\n  <b@x>: 451 ")
    assert lessons(held) == counts


def test_deleting(run, held):
    assert run(held, "quarantine", "delete", FIRST).out == "deleted 1 message\n"
    assert run(held, "quarantine", "delete", SECOND).status == 0
    assert list((held / DIRECTORY).iterdir()) == []


@pytest.mark.parametrize("action", ["show", "release", "delete"])
def test_an_unknown_id_is_an_error_before_anything_is_done(run, held, tmp_path, action):
    more = ["--next-hop", f"maildir:{tmp_path / 'Maildir'}"] if action == "release" else []
    assert run(held, "quarantine", action, FIRST, new_id(1, b"none"), *more).failed(
        new_id(1, b"none"), "no such message"
    )
    assert run(held, "quarantine", action, "../../key", *more).failed("../../key", "is no id")
    assert len(list((held / DIRECTORY).iterdir())) == 4
    assert not (tmp_path / "Maildir").exists()
