"""Clues about which names in a message belong together."""

from __future__ import annotations

import pytest

from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.headers import registered_domain, relation_clues
from tests.unit.mail.support import KEY, header

NAMED = {
    b"from": b"Anna <anna@news.shop.example>",
    b"to": b"otto@home.example",
    b"message-id": b"<1@mail.shop.example>",
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"anna@shop.example", b"shop.example"),
        (b'"x" <anna@A.B.Shop.Example>, otto@home.example', b"shop.example"),
        (b"anna@mail.shop.co.uk", b"shop.co.uk"),
        (b"anna@www.abc.de", b"abc.de"),
        (b"anna@localhost", b"localhost"),
        (b"anna", b""),
        (b"", b""),
        (b"x" * 400 + b"@shop.example", b""),
    ],
)
def test_owner_of_the_first_address(value: bytes, expected: bytes) -> None:
    assert registered_domain(value) == expected


@pytest.mark.parametrize(
    ("fields", "received", "hosts", "expected"),
    [
        ({}, [], [], {b"to_other", b"sender_not_passed_on", b"id_not_passed_on"}),
        (
            {},
            [b"from x by mx.shop.example"],
            [],
            {b"to_other", b"sender_passed_on", b"id_passed_on"},
        ),
        ({b"reply-to": b"b@shop.example"}, [], [], {b"reply_to_sender"}),
        ({b"reply-to": b"b@other.example"}, [], [], {b"reply_to_other"}),
        ({b"to": b"c@shop.example"}, [], [], {b"to_sender"}),
        ({}, [], ["www.shop.example", "shop.example"], {b"links_sender", b"link_owners_1"}),
        ({}, [], ["www.shop.example", "a.example"], {b"links_some_sender", b"link_owners_2"}),
        ({}, [], ["a.example"], {b"links_elsewhere", b"link_owners_1"}),
        ({}, [], [f"a{number}.example" for number in range(99)], {b"link_owners_5"}),
    ],
)
def test_clues(
    fields: dict[bytes, bytes], received: list[bytes], hosts: list[str], expected: set[bytes]
) -> None:
    assert expected <= set(relation_clues(NAMED | fields, received, hosts))


def test_nothing_is_known_of_a_message_without_fields() -> None:
    assert relation_clues({}, [b"from x"], []) == [
        b"to_other",
        b"sender_not_passed_on",
        b"id_not_passed_on",
    ]


def test_they_are_tokens_of_a_message() -> None:
    raw = header(
        b"Received: from x by mx.shop.example",
        b"From: anna@shop.example",
        body=b"see http://www.shop.example/x\n",
    )
    assert {"clue:links_sender", "clue:sender_passed_on"} <= set(
        FeatureExtractor(KEY).token_texts(raw).values()
    )
