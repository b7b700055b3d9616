"""The states of a session, and what is said in them, without any socket."""

import pytest

from spamguard.doors.smtp import dialogue
from spamguard.doors.smtp.dialogue import NEXT, State, refusal, split_line
from spamguard.doors.smtp.transactions import MailSession


def test_a_pair_that_is_not_in_the_table_is_out_of_order():
    for state in State:
        for verb in dialogue.VERBS - {"EHLO", "HELO", "LHLO"}:
            assert (refusal(state, verb, lmtp=False) is None) == ((state, verb) in NEXT)


def test_something_is_done_at_every_command_of_the_table_and_at_no_other():
    assert MailSession.commands.keys() == dialogue.VERBS


@pytest.mark.parametrize(
    ("state", "verb", "lmtp", "code"),
    [
        (State.GREETED, "MAIL", False, 503),
        (State.READY, "RCPT", False, 503),
        (State.READY, "DATA", False, 503),
        (State.SENDER, "MAIL", False, 503),
        (State.SENDER, "DATA", False, 554),
        (State.SENDER, "DATA", True, 503),
        (State.RECIPIENTS, "STARTTLS", False, 503),
        (State.SENDER, "XFORWARD", False, 503),
        (State.SENDER, "XCLIENT", False, 503),
        (State.GREETED, "LHLO", False, 500),
        (State.GREETED, "EHLO", True, 500),
        (State.GREETED, "HELO", True, 500),
        (State.READY, "AUTH", False, 502),
        (State.RECIPIENTS, "BDAT", False, 502),
        (State.READY, "GET", False, 500),
    ],
)
def test_refusals(state, verb, lmtp, code):
    assert refusal(state, verb, lmtp=lmtp).code == code


@pytest.mark.parametrize(
    ("line", "split"),
    [
        (b"mail FROM:<a@b>", ("MAIL", "FROM:<a@b>")),
        (b"Noop", ("NOOP", "")),
        (b"EHLO  x \t", ("EHLO", "x")),
        (b"", ("", "")),
        (b"\xff\xfe x\xff", ("\xff\xfe", "x\xff")),
        (b"XFORWARD NAME=" + b"x" * 12000, ("XFORWARD", "NAME=" + "x" * 12000)),
    ],
)
def test_lines_are_split(line, split):
    assert split_line(line) == split


@pytest.mark.parametrize("line", [b"NOOP \r x", b"NOOP\nQUIT", b"NOOP \0", b"NOOP " + b"x" * 2042, b"XCLIENT " + b"x" * 12288])
def test_lines_that_are_refused(line):
    with pytest.raises(dialogue.BadLineError):
        split_line(line)


def test_names_after_hello():
    assert [dialogue.hello_name(name) for name in ("mx.example", "[127.0.0.1]", "", "a b", "x" * 256, "\xe4")] == [
        "mx.example",
        "[127.0.0.1]",
        None,
        None,
        None,
        None,
    ]


def test_replies_of_our_own_have_enhanced_codes_that_fit():
    for name, reply in vars(dialogue).items():
        if isinstance(reply, dialogue.Reply) and reply is not dialogue.GO_AHEAD:
            assert reply.lines[0][:2] == b"%d." % (reply.code // 100), name
