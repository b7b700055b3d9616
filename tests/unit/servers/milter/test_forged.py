"""Forged fields: each is named by its occurrence, and none is missed."""

from hypothesis import given
from hypothesis import strategies as st

from spamguard.servers import milter

NAMES = st.sampled_from(
    [
        b"X-Spam-Flag",
        b"x-spam-FLAG",
        b"X-Spam-Status",
        b"X-Spamguard",
        b"X-Bogosity",
        b"X-Bogosity2",
        b"Subject",
        b"X-S",
    ]
)


def applied(names, removals):
    """As a server does it."""
    left = list(names)
    for packet in removals:
        occurrence, name = int.from_bytes(packet[5:9]), packet[9:].split(b"\0")[0]
        at = [number for number, one in enumerate(left) if one.lower() == name.lower()]
        del left[at[occurrence - 1]]
    return left


@given(st.lists(NAMES, max_size=30))
def test_all_forged_fields_go_and_no_others(names):
    message = milter.MilterMessage()
    for name in names:
        message.add_field(name)
    assert applied(names, message.removals[::-1]) == [
        name for name in names if name in (b"Subject", b"X-S", b"X-Bogosity2")
    ]
