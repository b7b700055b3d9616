"""The SMTP session without a connection: states and refusals, command lines, budgets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.config.options import DoorLimits
from spamguard.servers import smtp_state
from spamguard.servers.smtp import SmtpMailSession
from spamguard.servers.smtp_state import (
    MAX_LONG_LINE_BYTES,
    TRANSITIONS,
    BadLineError,
    CommandBudget,
    LineBuffer,
    SmtpState,
    command_refusal,
    split_line,
)
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


def all_of(lines):
    taken = []
    while True:
        try:
            line = lines.next_line()
        except BadLineError:
            taken.append("bad")
            continue
        if line is None:
            return taken
        taken.append(line)


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc", b"\0"]), max_size=30),
    st.integers(1, 5),
)
def test_only_crlf_ends_a_line_however_the_bytes_are_cut(pieces, step):
    text, lines, taken = b"".join(pieces), LineBuffer(), []
    for at in range(0, len(text), step):
        lines.data += text[at : at + step]
        taken += all_of(lines)
    *ended, rest = text.split(b"\r\n")
    assert (taken, bytes(lines.data)) == (ended, rest)


@pytest.mark.parametrize("step", [1000, 4096, 70000])
def test_an_overlong_line_is_refused_at_its_end_and_takes_no_memory(step):
    text, lines, taken, max_size = b"x" * 200_000 + b"\r\nNOOP\r\n", LineBuffer(), [], 0
    for at in range(0, len(text), step):
        lines.data += text[at : at + step]
        taken += all_of(lines)
        max_size = max(max_size, len(lines.data))
    assert taken == ["bad", b"NOOP"]
    assert max_size <= MAX_LONG_LINE_BYTES


def test_its_end_may_come_in_two_pieces():
    lines = LineBuffer()
    lines.data += b"x" * 20_000 + b"\r"
    assert all_of(lines) == []
    lines.data += b"\nNOOP\r\n"
    assert all_of(lines) == ["bad", b"NOOP"]


@pytest.mark.parametrize(
    "text", [b"NOOP\n", b"a\r\nNOOP\n", b"\n", b"NOOP\nNOOP\n", b"x" * 20_000 + b"\n"]
)
@pytest.mark.parametrize("step", [1, 5, 30_000])
def test_a_line_that_ends_in_lf_alone_is_noticed(text, step):
    lines = LineBuffer()
    for at in range(0, len(text), step):
        lines.data += text[at : at + step]
        all_of(lines)
    assert lines.ends_in_bare_lf


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from([b"\r\n", b"a", b"\r", b"x" * 20_000]), max_size=20), st.integers(1, 5)
)
def test_without_a_bare_lf_none_is_noticed(pieces, step):
    text, lines = b"".join(pieces), LineBuffer()
    for at in range(0, len(text), step):
        lines.data += text[at : at + step]
        all_of(lines)
        assert not lines.ends_in_bare_lf


def test_what_was_taken_can_be_put_back():
    lines = LineBuffer()
    lines.data += b"abc\r\n.\r\nQUIT"
    assert lines.take_all() == b"abc\r\n.\r\nQUIT"
    lines.data += b"\r\n"
    lines.put_back(b"QUIT")
    assert all_of(lines) == [b"QUIT"]


def test_a_budget_ends_and_restarts_with_a_message():
    budget = CommandBudget(DoorLimits(idle_commands=2, wrong_commands=1))
    budget.count_wrong()
    budget.count_idle()
    budget.count_idle()
    assert not budget.is_exhausted
    budget.count_idle()
    assert budget.is_exhausted
    budget.reset()
    assert not budget.is_exhausted
