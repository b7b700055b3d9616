"""Forged fields: each is named by its occurrence, and none is missed."""

from hypothesis import given
from hypothesis import strategies as st

from spamguard.config.options import FORGED_FIELDS
from spamguard.mail.message import FieldNameSet
from spamguard.servers import milter
from spamguard.servers.milter_protocol import encode_remove_field

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
    header_filter = milter.ForgedHeaderFilter(FieldNameSet(FORGED_FIELDS))
    for name in names:
        header_filter.add_field(name)
    assert applied(names, header_filter.removal_packets()) == [
        name for name in names if name in (b"Subject", b"X-S", b"X-Bogosity2")
    ]


def test_case_and_blanks_make_no_difference():
    header_filter = milter.ForgedHeaderFilter(FieldNameSet(["X-Mine"]))
    for name in (b"X-MINE", b"x-mine \t", b"X-Mine-Not"):
        header_filter.add_field(name)
    assert header_filter.removal_packets() == [
        encode_remove_field(b"x-mine", 2),
        encode_remove_field(b"x-mine", 1),
    ]


def test_the_number_of_removals_is_bounded():
    header_filter = milter.ForgedHeaderFilter(FieldNameSet(FORGED_FIELDS))
    for number in range(10_000):
        header_filter.add_field(b"X-Spam-%d" % number)
    assert len(header_filter.removal_packets()) == milter.MAX_REMOVALS


def test_names_that_no_line_has_room_for_are_not_kept():
    """Each may be as long as a packet, and a message has many."""
    header_filter = milter.ForgedHeaderFilter(FieldNameSet(FORGED_FIELDS))
    for more in (0, 1, 100_000):
        header_filter.add_field(b"X-Spam-".ljust(milter.MAX_NAME_BYTES + more, b"a"))
    assert header_filter.removal_packets() == [
        encode_remove_field(b"x-spam-".ljust(milter.MAX_NAME_BYTES, b"a"), 1)
    ]
