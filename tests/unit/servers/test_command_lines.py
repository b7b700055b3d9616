"""Command lines: what ends one, which are refused in which state, and budgets."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.config.options import Protocol
from spamguard.servers.listener import ConnectionClosed
from spamguard.servers.smtp import ClientReader
from spamguard.smtp.envelope import RefusedError, Replies, Reply
from tests.support.waiting import PATIENCE
from tests.unit.servers.support import ScriptedProxy, serving


def converse(directory, *lines, protocol=Protocol.SMTP, **options):
    """The codes of the replies to these lines, the first of which is the greeting's."""

    async def main():
        async with serving(directory, ScriptedProxy(), protocol=protocol, **options) as served:
            caller = await served.call()
            return [await caller.code(), *await caller.codes(*lines)]

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


MAIL, RCPT = b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@x.example>"


@pytest.mark.parametrize(
    ("before", "line", "lmtp", "code"),
    [
        ([], MAIL, False, 503),
        ([], RCPT, False, 503),
        ([], b"DATA", False, 503),
        ([], b"XFORWARD NAME=x", False, 503),
        ([b"EHLO x"], RCPT, False, 503),
        ([b"EHLO x"], b"DATA", False, 503),
        ([b"EHLO x", MAIL], MAIL, False, 503),
        ([b"EHLO x", MAIL], b"DATA", False, 554),
        ([b"LHLO x", MAIL], b"DATA", True, 503),
        ([b"EHLO x", MAIL], b"XFORWARD NAME=x", False, 503),
        ([b"EHLO x", MAIL], b"XCLIENT NAME=x", False, 503),
        ([b"EHLO x", MAIL, RCPT], b"BDAT 3", False, 500),
        ([], b"LHLO x", False, 500),
        ([], b"EHLO x", True, 500),
        ([], b"HELO x", True, 500),
        ([b"EHLO x"], b"AUTH PLAIN", False, 500),
        ([], b"EHLO mx.example", False, 250),
        ([], b"EHLO [127.0.0.1]", False, 250),
        ([], b"EHLO " + b"x" * 256, False, 501),
        ([], "EHLO ä".encode(), False, 501),
        ([], b"XCLIENT NAME=" + b"x" * 12_000, False, 220),
        ([], b"NOOP " + b"x" * 12_300, False, 500),
        ([b"EHLO x"] * 9, b"NOOP " + b"x" * 12_000, False, 250),
        ([b"EHLO x", MAIL], RCPT + b" NOTIFY=NEVER ORCPT=rfc822;" + b"x" * 470, False, 250),
        ([b"EHLO x"], b"NOOP " + b"x" * 12_300, False, 500),
        ([b"LHLO x"], b"NOOP " + b"x" * 12_000, True, 250),
    ],
)
def test_refusals(tmp_path, before, line, lmtp, code):
    protocol = Protocol.LMTP if lmtp else Protocol.SMTP
    heard = converse(tmp_path, *before, line, b"NOOP", protocol=protocol)
    assert heard[1:-2] == [250] * len(before)
    assert heard[-2:] == [code, 250]


def test_replies_of_our_own_have_enhanced_codes_that_fit():
    for name, reply in vars(Replies).items():
        if isinstance(reply, Reply) and reply is not Replies.GO_AHEAD:
            assert reply.lines[0][:2] == b"%d." % (reply.code // 100), name


def lines_read(pieces):
    """The lines that a reader gives, and whether it ended at a bare LF."""

    async def main():
        loop, lines = asyncio.get_running_loop(), []

        async def before_wait():
            return loop.time() + PATIENCE

        reader = ClientReader(loop, before_wait)

        async def feed():
            for piece in pieces:
                reader.feed_data(piece)
                for _ in range(3):
                    await asyncio.sleep(0)
            reader.feed_eof()

        feeding = asyncio.create_task(feed())
        ends_in_lf = False
        try:
            while True:
                lines.append(await reader.read_line())
        except ConnectionClosed:
            pass
        except RefusedError:
            ends_in_lf = True
        await feeding
        return lines, ends_in_lf

    return asyncio.run(main())


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc", b"\0"]), max_size=30),
    st.integers(1, 5),
)
def test_only_crlf_ends_a_line_however_the_bytes_are_cut(pieces, step):
    text = b"".join(pieces)
    lines, ends_in_lf = lines_read([text[at : at + step] for at in range(0, len(text), step)])
    whole = text.split(b"\r\n")[:-1]
    assert lines == whole[: len(lines)]
    assert ends_in_lf or lines == whole
