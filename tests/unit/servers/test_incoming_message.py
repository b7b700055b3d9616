"""A message that comes in gives back all it took of the door's limits, in any thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spamguard.config.options import ScannerLimits
from spamguard.servers.listener import ByteQuota, IncomingMessage, Rejection


class Piece(bytes):
    """Some bytes. Other threads may have their turn while they are counted."""

    def __len__(self) -> int:
        return super().__len__()


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hurried")
def test_messages_of_several_threads_give_back_what_they_took(tmp_path: Path) -> None:
    limits = ScannerLimits()
    load = ByteQuota(limits)

    def one(_: int) -> None:
        message = IncomingMessage(tmp_path, limits, load)
        for _ in range(200):
            message.write(Piece(b"x" * 7))
        message.close()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(one, range(200)))
    assert load.bytes_in_flight == 0


def test_no_more_than_the_limits_allow(tmp_path: Path) -> None:
    limits = ScannerLimits(message_size=10, size_in_flight=15)
    load = ByteQuota(limits)
    first, second, third = (IncomingMessage(tmp_path, limits, load) for _ in range(3))
    first.write(b"x" * 10)
    second.write(b"x" * 6)
    assert (first.rejection, second.rejection, load.bytes_in_flight) == (
        None,
        Rejection.TRY_LATER,
        10,
    )
    first.write(b"x")
    assert (first.rejection, load.bytes_in_flight) == (Rejection.TOO_LARGE, 0)
    third.write(b"x" * 5)
    assert third.spool.read() == b"x" * 5
    for message in (first, second, third, third):
        message.close()
    assert load.bytes_in_flight == 0
