"""The states of a session, and what is said in them, without any socket."""

import pytest

from spamguard.servers import smtp_state
from spamguard.servers.smtp import SmtpMailSession
from spamguard.servers.smtp_state import TRANSITIONS, SmtpState, command_refusal, split_line
from spamguard.smtp import envelope


def test_a_pair_that_is_not_in_the_table_is_out_of_order():
    for state in SmtpState:
        for verb in smtp_state.VERBS - {"EHLO", "HELO", "LHLO"}:
            assert (command_refusal(state, verb, lmtp=False) is None) == (
                (state, verb) in TRANSITIONS
            )


def test_something_is_done_at_every_command_of_the_table_and_at_no_other():
    assert SmtpMailSession.commands.keys() == smtp_state.VERBS


@pytest.mark.parametrize(
    ("state", "verb", "lmtp", "code"),
    [
        (SmtpState.GREETED, "MAIL", False, 503),
        (SmtpState.READY, "RCPT", False, 503),
        (SmtpState.READY, "DATA", False, 503),
        (SmtpState.SENDER, "MAIL", False, 503),
        (SmtpState.SENDER, "DATA", False, 554),
        (SmtpState.SENDER, "DATA", True, 503),
        (SmtpState.RECIPIENTS, "STARTTLS", False, 503),
        (SmtpState.SENDER, "XFORWARD", False, 503),
        (SmtpState.SENDER, "XCLIENT", False, 503),
        (SmtpState.GREETED, "LHLO", False, 500),
        (SmtpState.GREETED, "EHLO", True, 500),
        (SmtpState.GREETED, "HELO", True, 500),
        (SmtpState.READY, "AUTH", False, 502),
        (SmtpState.RECIPIENTS, "BDAT", False, 502),
        (SmtpState.READY, "GET", False, 500),
    ],
)
def test_refusals(state, verb, lmtp, code):
    assert command_refusal(state, verb, lmtp=lmtp).code == code


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


@pytest.mark.parametrize(
    "line",
    [b"NOOP \r x", b"NOOP\nQUIT", b"NOOP \0", b"NOOP " + b"x" * 2042, b"XCLIENT " + b"x" * 12288],
)
def test_lines_that_are_refused(line):
    with pytest.raises(smtp_state.BadLineError):
        split_line(line)


def test_names_after_hello():
    assert [
        smtp_state.parse_hello_name(name)
        for name in ("mx.example", "[127.0.0.1]", "", "a b", "x" * 256, "\xe4")
    ] == [
        "mx.example",
        "[127.0.0.1]",
        None,
        None,
        None,
        None,
    ]


def test_replies_of_our_own_have_enhanced_codes_that_fit():
    for name, reply in vars(smtp_state).items():
        if isinstance(reply, envelope.Reply) and reply is not smtp_state.GO_AHEAD:
            assert reply.lines[0][:2] == b"%d." % (reply.code // 100), name
