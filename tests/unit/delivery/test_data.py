"""The message goes out byte for byte, in bounded memory, and with one end only."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.smtp.envelope import Reply
from spamguard.storage import Spool, SpoolView
from tests.support.hops import Act, Answer, FakeHop, Middle, Then
from tests.unit.delivery.talks import LOST, codes, content, hand_on, talk

pytestmark = pytest.mark.slow  # waits for seconds

CONTENT_TROUBLE = Reply.from_text(451, "4.3.0 Local trouble, try again later")
LARGE = b"0123456789abcdef\r\n" * 500_000  # 9 MB: more than the kernel takes at once


@pytest.mark.parametrize("said", [b"250 fine\r\n", b"354 more\r\n", b"25", b"nonsense\r\n"])
def test_no_reply_before_the_end_of_data_is_a_yes(said: bytes) -> None:
    fake = FakeHop({}, middle=Middle(100, Then(said, Act.STALL)))
    assert talk(fake, lambda hop: hand_on(hop, message=content(LARGE)))[2:] == [LOST]
    assert not fake.messages


@pytest.mark.parametrize(
    "odd",
    [b"a\n.\r\nb\r\n", b"a\r.\r\nb\r\n", b"a\r\n.\nb\r\n", b"a\0\r\n", b"a\r\n\r.\r\n", b"a\r"],
)
def test_nothing_that_could_be_read_in_two_ways_goes_out(odd: bytes) -> None:
    fake = FakeHop({})
    assert talk(fake, lambda hop: hand_on(hop, message=content(odd)))[2:] == [CONTENT_TROUBLE]
    assert not fake.messages


class Slow(Spool):
    """Says how far it was read."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.gettempdir()))
        self.given = 0

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """A gigabyte, unless stopped."""
        for _ in range(4096):
            self.given += 256 << 10
            yield b"0123456789abcde\r\n" * ((256 << 10) // 17)


def test_a_hop_that_does_not_read_does_not_fill_our_memory() -> None:
    spool = Slow()
    fake = FakeHop({}, middle=Middle(1, Act.STALL))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    replies = talk(fake, lambda hop: hand_on(hop, message=SpoolView(b"", spool, 0)), command=1.0)
    assert replies[2:] == [LOST]
    assert spool.given < 300 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # kB


@pytest.mark.parametrize("endless", [b"250-more\r\n" * 20_000, b"250 " + b"x" * 500_000])
@pytest.mark.parametrize("step", ["GREETING", "EHLO", "MAIL", "DOT"])
def test_replies_without_end(step: str, endless: Answer) -> None:
    assert codes(talk(FakeHop({step: endless}), hand_on))[-1] == 451
