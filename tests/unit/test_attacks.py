"""Attacks on filters: what comes out is valid mail, and a reader sees the spam it was."""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Callable
from email import message_from_bytes, policy
from email.errors import InvalidBase64CharactersDefect
from email.message import EmailMessage
from pathlib import Path

import pytest

from corpora.synthetic import generate
from tests.bench import attacks, bench_evasion

SPAM = [raw for label, raw in generate(30, 5) if label == "spam"]
GOOD = ["meeting", "thanks", "patch", "tomorrow", "kernel", "minutes"]
TELLTALE = {"order", "offer", "account", "pills", "click", "price", "winner", "bestellen", "verify"}
LATIN = str.maketrans("асеіорхуѕјАВСЕНІКМОРТХЅЈ", "aceiopxysjABCEHIKMOPTXSJ") | str.maketrans(
    "013458", "oieasb"
)

PAGE = b"""From: a@example.com
Subject: Order pills now
MIME-Version: 1.0
Content-Type: text/html; charset=us-ascii

<html><head><title>order</title></head><body bgcolor="#ffffff">
<a href="http://order.example/pills?x=1">Order</a> pills &amp; win<!-- pills --></body></html>
"""
PLAIN = b"""From: a@example.com
Subject: Order pills now
Content-Type: text/plain; charset=iso-8859-1
Content-Transfer-Encoding: quoted-printable

Order pills=2C caf=E9=A0price, at http://order.example/pills or order@pills.example
"""

SHOWN_AS_BEFORE: dict[str, Callable[[bytes], bytes]] = {
    "rebuilt": attacks.rebuilt,
    **{
        f"hidden, {place}": (lambda raw, place=place: attacks.hidden(raw, GOOD, 4, place))
        for place in attacks.HIDING_PLACES
    },
    "cut by markup": lambda raw: attacks.cut_by_markup(raw, TELLTALE),
    "base64": attacks.in_base64,
    "damaged base64": attacks.in_damaged_base64,
    "UTF-16": attacks.in_utf16,
    "UTF-7": attacks.in_utf7,
    "references": attacks.in_entities,
}
DISGUISED: dict[str, Callable[[bytes], bytes]] = {
    "spaced": lambda raw: attacks.spaced(raw, TELLTALE),
    "lookalikes": lambda raw: attacks.lookalikes(raw, TELLTALE),
    "one lookalike": lambda raw: attacks.one_lookalike(raw, TELLTALE),
    "one digit": lambda raw: attacks.with_digit(raw, TELLTALE),
    "zero width": lambda raw: attacks.zero_width(raw, TELLTALE),
}
MORE: dict[str, Callable[[bytes], bytes]] = {
    "appended": lambda raw: attacks.appended(raw, GOOD, 4),
    "gibberish": lambda raw: attacks.gibberish(raw, 20),
}
ALL = {**SHOWN_AS_BEFORE, **DISGUISED, **MORE, "image only": attacks.image_only}

ALL_SPAM = [*SPAM, PAGE, PLAIN]


def read(raw: bytes) -> EmailMessage:
    found = message_from_bytes(raw, policy=policy.default)
    assert isinstance(found, EmailMessage)
    return found


def text_of(raw: bytes) -> str:
    """All text, markup and all."""
    return "".join(
        [part.get_content() for part in read(raw).walk() if part.get_content_maintype() == "text"]
    )


def seen(raw: bytes) -> str:
    """What a reader sees, blanks apart; what styles hide is in it too."""
    return "".join(attacks.shown(raw).split())


def without_good(text: str) -> str:
    """Without any run of good words."""
    for word in GOOD:
        text = text.replace(word, "")
    return text


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_attacked_mail_is_valid_and_comes_from_whom_it_came(name: str) -> None:
    for raw in ALL_SPAM:
        attacked, before = read(ALL[name](raw)), read(raw)
        kept = [
            field for field in ("from", "to", "date", "message-id", "received") if field in before
        ]
        assert [attacked.get_all(field) for field in kept] == [
            before.get_all(field) for field in kept
        ]
        for part in attacked.walk():
            part.get_payload(decode=True)
            damage = [
                defect
                for defect in part.defects
                if name != "damaged base64" or not isinstance(defect, InvalidBase64CharactersDefect)
            ]
            assert not damage


@pytest.mark.parametrize("name", ALL)
def test_the_same_bytes_give_the_same_attack_and_it_does_something(name: str) -> None:
    for raw in (PAGE, PLAIN):
        attacked = ALL[name](raw)
        assert attacked == ALL[name](raw)
        assert attacked != raw or name == "rebuilt"


@pytest.mark.parametrize("name", SHOWN_AS_BEFORE)
def test_hidden_and_encoded_text_shows_what_it_showed(name: str) -> None:
    for raw in ALL_SPAM:
        assert without_good(seen(SHOWN_AS_BEFORE[name](raw))) == without_good(seen(raw))


@pytest.mark.parametrize("name", DISGUISED)
def test_disguised_words_are_still_read(name: str) -> None:
    for raw in ALL_SPAM:
        attacked = DISGUISED[name](raw)
        assert plainly(attacks.shown(attacked)) == plainly(attacks.shown(raw))
        assert plainly(attacks.subject_of(attacked)) == plainly(attacks.subject_of(raw))


def plainly(text: str) -> str:
    """Letters as they look, without what has no width."""
    return "".join(
        [
            one
            for one in text.translate(LATIN).lower()
            if not one.isspace() and unicodedata.category(one) != "Cf"
        ]
    )


@pytest.mark.parametrize("name", DISGUISED)
@pytest.mark.parametrize("raw", [PAGE, PLAIN])
def test_a_disguised_word_is_another_word_but_its_link_still_works(name: str, raw: bytes) -> None:
    attacked = DISGUISED[name](raw)
    assert "pills" in attacks.subject_of(raw)
    assert "pills" not in attacks.subject_of(attacked)
    text = text_of(attacked)
    assert "http://order.example/pills" in text
    assert " pills " not in text.replace("<!-- pills -->", "")
    assert "@" not in text or "order@pills.example" in text


@pytest.mark.parametrize("name", MORE)
def test_words_are_added_below_what_was_there(name: str) -> None:
    for raw in ALL_SPAM:
        attacked, before = attacks.shown(MORE[name](raw)).split(), attacks.shown(raw).split()
        assert len(attacked) > len(before)
        assert attacked[: min(len(before), 5)] == before[:5]


def test_good_words_are_there_all() -> None:
    assert set(GOOD) <= attacks.words_of(attacks.appended(PAGE, GOOD, len(GOOD)))
    for place in attacks.HIDING_PLACES:
        assert all(word in text_of(attacks.hidden(PLAIN, GOOD, len(GOOD), place)) for word in GOOD)


def test_a_picture_and_a_link_are_all_there_is() -> None:
    attacked = read(attacks.image_only(PAGE))
    page, image = attacked.iter_parts()
    assert not attacks.shown(attacks.image_only(PAGE)).split()
    assert "http://order.example/pills?x=1" in page.get_content()
    assert f"cid:{image['content-id'][1:-1]}" in page.get_content()
    assert attacked["subject"] == "Order pills now"
    assert picture_size(image.get_content()) == (480, 240)


def picture_size(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG, its checksums and its pixels looked at."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, place = {}, 8
    while place < len(png):
        size = int.from_bytes(png[place : place + 4])
        name, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + size]
        assert zlib.crc32(name + data) == int.from_bytes(png[place + 8 + size : place + 12 + size])
        chunks[name], place = data, place + 12 + size
    width, height = int.from_bytes(chunks[b"IHDR"][:4]), int.from_bytes(chunks[b"IHDR"][4:8])
    assert len(zlib.decompress(chunks[b"IDAT"])) == height * (width + 1)
    return width, height


def test_a_dictionary_comes_under_the_header_of_a_message() -> None:
    poison = attacks.dictionary_mail(PAGE, ["meeting", "straße"])
    assert attacks.shown(poison).split() == ["meeting", "straße"]
    assert read(poison)["subject"] == "Order pills now"
    assert not read(poison).defects


def test_attackers_know_the_mail_that_was_taught(tmp_path: Path) -> None:
    taught = list(generate(200, 5))
    (tmp_path / "words").write_text("apple\nBoston\npear's\nplum\n")
    words = bench_evasion.known_words(taught, tmp_path / "words")
    assert words.random == ["apple", "plum"]
    assert words.telltale
    assert words.telltale.isdisjoint(words.good)
    assert set(words.good) <= set(words.ham)


def test_poison_is_the_asked_share_of_what_is_taught_and_slices_hold_the_dictionary_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_evasion, "SLICE", 8)
    taught = list(generate(200, 5))
    words = bench_evasion.Words(
        [],
        frozenset(),
        [],
        [f"word{letter}{other}" for letter in "abcdefgh" for other in "abcdefgh"],
    )
    whole, sliced = (
        bench_evasion.poison(taught, words, 0.05, sliced=sliced) for sliced in (False, True)
    )
    assert len(whole) == len(sliced) == round(0.05 * (200 + len(whole)))
    assert {label for label, _ in whole} == {"spam"}
    assert all(attacks.words_of(raw) == set(words.ham) for _, raw in whole)
    assert {len(attacks.words_of(raw)) for _, raw in sliced} == {8}
    assert set().union(*[attacks.words_of(raw) for _, raw in sliced]) == set(words.ham)


def test_an_absent_corpus_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no corpus at"):
        bench_evasion.corpus(str(tmp_path / "index"))
