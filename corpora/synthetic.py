"""Made-up mail in any quantity, for tests and load: labelled, seeded, with the variety of form that
real mail has.

Everything is invented here: texts (`phrases.toml`), names, and hosts under .example and .invalid or
example.com, .net and .org. It must never contain anything from a real message, never need more than
the standard library, and never be used to tune a filter: it knows nothing about how people and
spammers really write. What it is good for is volume, languages, charsets, MIME structures, threads,
and a vocabulary that grows with the number of messages.

One file, though a long one, so that it runs as a script from anywhere:

    python corpora/synthetic.py --messages 1000 --seed 1 DIRECTORY

It writes DIRECTORY/index and DIRECTORY/data/. The same seed gives the same mail, byte for byte,
and a longer run begins with the shorter one. Lines end in LF, as in mail on disk.
"""

from __future__ import annotations

import argparse
import base64
import sys
import time
import tomllib
from binascii import b2a_qp
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from functools import lru_cache
from html import escape
from pathlib import Path
from random import Random
from typing import Any

HAM = ("personal", "work", "newsletter", "receipt", "list", "invitation")
SPAM = ("pharma", "phishing", "advance", "lottery", "seo", "malware")
_HAM_WEIGHTS = (26, 30, 14, 10, 16, 4)
_SPAM_WEIGHTS = (22, 22, 14, 10, 20, 12)
_SPAM_SHARE = 0.4

LANGUAGES = ("en", "de", "fr", "es", "ru", "ja", "zh")
_LANGUAGE_WEIGHTS = {"ham": (46, 14, 10, 10, 8, 6, 6), "spam": (50, 8, 8, 9, 11, 5, 9)}

_START = 1_704_067_200  # 1 January 2024, 00:00 UTC
_SECONDS_BETWEEN = 400.0
_LATIN = (
    "ba",
    "cor",
    "del",
    "fin",
    "gra",
    "hel",
    "ix",
    "jo",
    "lum",
    "mer",
    "nov",
    "or",
    "pel",
    "quin",
    "ros",
    "sal",
    "tor",
    "vex",
    "wil",
)
_MAILERS = (
    "Quillmail 3.2",
    "Postbird 115.4",
    "Handset Mail (21F90)",
    "Outpost 16.0",
    "webmail/1.6.6",
    "Mailing Engine 4.1",
)
_USERS = ("anna", "james", "office", "info", "clara.finch", "m.holt", "support", "grace")
_ZONES = tuple(timezone(timedelta(hours=hours)) for hours in (0, 1, 2, -5, -8, 3, 9, 8, 5.5))
_Q = [
    chr(byte) if chr(byte).isalnum() and byte < 128 else "_" if byte == 32 else f"={byte:02X}"
    for byte in range(256)
]

_ATTACHMENTS = {
    "work": (
        ("report.pdf", "application/pdf", b"%PDF-1.4\n"),
        ("plan.xlsx", "application/vnd.ms-excel", b"PK\x03\x04"),
    ),
    "personal": (("photo.jpg", "image/jpeg", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"),),
    "receipt": (("receipt.pdf", "application/pdf", b"%PDF-1.4\n"),),
    "malware": (
        ("invoice.zip", "application/zip", b"PK\x03\x04"),
        ("label.pdf.js", "application/octet-stream", b"// not a program: "),
        ("scan.docm", "application/msword", b"\xd0\xcf\x11\xe0"),
    ),
}
"""File name, content type and first bytes of what is attached; the rest is random, so nothing can
be opened or run.
"""

_STRUCTURES = {  # weights of: plain text, HTML alone, both as alternatives
    "personal": (60, 5, 35), "work": (45, 5, 50), "newsletter": (5, 35, 60),
    "receipt": (15, 35, 50), "list": (90, 0, 10), "invitation": (30, 0, 70),
    "pharma": (30, 45, 25), "phishing": (10, 60, 30), "advance": (80, 5, 15),
    "lottery": (60, 20, 20), "seo": (50, 15, 35), "malware": (50, 25, 25),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Language:
    """One language's lists. texts: by kind, (subjects, sentences)."""

    code: str
    charsets: tuple[str, ...]
    money: str
    syllables: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    hello: tuple[str, ...]
    bye: tuple[str, ...]
    small: tuple[str, ...]
    texts: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]

    @property
    def spaced(self) -> bool:
        """Does it put spaces between words?"""
        return self.code not in ("ja", "zh")


_SLOTS = {
    "given": "given",
    "family": "family",
    "place": "places",
    "thing": "things",
    "quality": "qualities",
    "day": "days",
}


@lru_cache(maxsize=1)
def languages() -> dict[str, Language]:
    """The languages of phrases.toml, by code."""
    with Path(__file__).with_name("phrases.toml").open("rb") as stream:
        return {code: _language(code, lists) for code, lists in tomllib.load(stream).items()}


def _language(code: str, lists: dict[str, Any]) -> Language:
    def lines(text: str) -> tuple[str, ...]:
        return tuple(text.strip().splitlines())

    return Language(
        code=code,
        charsets=tuple(lists["charsets"]),
        money=lists["money"],
        syllables=tuple(lists["syllables"].split()) if "syllables" in lists else _LATIN,
        slots={slot: tuple(lists[name].split()) for slot, name in _SLOTS.items()},
        hello=lines(lists["hello"]),
        bye=lines(lists["bye"]),
        small=lines(lists["small"]),
        texts={
            kind: (lines(lists[kind]["subjects"]), lines(lists[kind]["sentences"]))
            for kind in HAM + SPAM
        },
    )


class _Slots(dict[str, str]):
    """Values for a text's slots, drawn anew for each slot: nothing is ever stored in it."""

    def __init__(self, rng: Random, language: Language, label: str) -> None:
        super().__init__()
        self._rng, self._language = rng, language
        self._made: dict[str, Callable[[], str]] = {
            "number": self._number,
            "money": lambda: language.money.format(number=self._number()),
            "code": lambda: (
                f"{rng.choice('ABKNRTX')}{rng.choice('CEHMWZ')}-{rng.getrandbits(20):05d}"
            ),
            "time": lambda: f"{rng.randrange(7, 22)}:{rng.choice(('00', '15', '30', '45'))}",
            "url": lambda: (
                f"https://{_host(rng, label)}/{_invent(rng, _LATIN)}/{rng.getrandbits(32):x}"
            ),
            "invented": lambda: _invent(rng, language.syllables),
            "firm": lambda: (
                _invent(rng, _LATIN).capitalize()
                + rng.choice((" Bank", " Ltd", " AG", "soft", " & Sons", "works"))
            ),
        }

    def __missing__(self, slot: str) -> str:
        listed = self._language.slots.get(slot)
        return self._rng.choice(listed) if listed else self._made[slot]()

    def _number(self) -> str:
        return str(
            self._rng.choice(
                (2, 3, 5, 7, 10, 20, 24, 30, 50, 99, 100, 500, self._rng.randrange(1, 5000))
            )
        )


def _invent(rng: Random, syllables: tuple[str, ...]) -> str:
    """A word that exists nowhere; most are new, so the vocabulary grows with the number of
    messages.
    """
    return "".join(rng.choices(syllables, k=rng.choice((2, 3, 3, 4))))


def _host(rng: Random, label: str) -> str:
    """A host name that cannot exist (RFC 2606). Spam prefers .invalid; neither is a proof."""
    name = _invent(rng, _LATIN)
    if rng.random() < (0.6 if label == "spam" else 0.1):
        return f"{name}.invalid"
    return rng.choice(
        (
            f"{name}.example",
            f"mail.{name}.example",
            "example.com",
            "example.net",
            "example.org",
            "lists.example.org",
        )
    )


@dataclass(slots=True)
class _Draft:
    """A message before it becomes bytes. paragraphs: text without line ends inside."""

    label: str
    kind: str
    language: Language
    charset: str
    subject: str
    paragraphs: list[str]
    sender_name: str
    sender: str
    host: str
    message_id: str
    when: float
    references: list[str] = field(default_factory=list)


class _Writer:
    """Writes one message after another; remembers the clock and the last ham, which later mail
    answers.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  repeatable is the point
        self.now = float(_START)
        self.recent: deque[_Draft] = deque(maxlen=50)
        self.regulars = [(self._person("en"), _host(self.rng, "ham")) for _ in range(60)]

    def message(self) -> tuple[str, bytes]:
        draft = self._draft()
        headers, body = self._content(draft)
        return draft.label, b"\n".join([*self._header(draft), *headers, b"", body])

    # ---- what it says

    def _draft(self) -> _Draft:
        rng = self.rng
        label = "spam" if rng.random() < _SPAM_SHARE else "ham"
        kind = (
            rng.choices(SPAM, _SPAM_WEIGHTS)[0]
            if label == "spam"
            else rng.choices(HAM, _HAM_WEIGHTS)[0]
        )
        language = languages()[rng.choices(LANGUAGES, _LANGUAGE_WEIGHTS[label])[0]]
        slots = _Slots(rng, language, label)
        self.now += rng.expovariate(1 / _SECONDS_BETWEEN)
        name, host = self._sender(label, kind, language)
        draft = _Draft(
            label=label,
            kind=kind,
            language=language,
            charset=rng.choice(language.charsets),
            subject=rng.choice(language.texts[kind][0]).format_map(slots),
            paragraphs=self._text(kind, language, slots),
            sender_name=name,
            sender=self._address(host),
            host=host,
            message_id=f"<{rng.getrandbits(64):x}.{int(self.now)}@{host}>",
            when=self.now,
        )
        self._answer(draft)
        return draft

    def _sender(self, label: str, kind: str, language: Language) -> tuple[str, str]:
        """Display name and host; people at work and on lists are mostly the same ones."""
        if kind in ("work", "list", "personal") and self.rng.random() < 0.7:
            return self.rng.choice(self.regulars)
        return self._person(language.code), _host(self.rng, label)

    def _person(self, code: str) -> str:
        slots = languages()[code].slots
        return f"{self.rng.choice(slots['given'])} {self.rng.choice(slots['family'])}"

    def _text(self, kind: str, language: Language, slots: _Slots) -> list[str]:
        """Greeting, a few paragraphs, farewell. A little is small talk only, and some spam carries
        ham to hide behind.
        """
        rng, sentences = self.rng, language.texts[kind][1]
        pool = (
            list(language.small)
            if rng.random() < 0.04
            else rng.sample(sentences, rng.randint(2, len(sentences)))
        )
        pool += rng.sample(language.small, rng.choice((0, 1, 1, 2)))
        if kind in SPAM and rng.random() < 0.25:
            pool += rng.sample(language.texts[rng.choice(HAM)][1], 2)
        rng.shuffle(pool)
        filled = [sentence.format_map(slots) for sentence in pool]
        if rng.random() < 0.2:
            filled.append(
                " ".join(_invent(rng, language.syllables) for _ in range(rng.randint(3, 25)))
            )
        joint = " " if language.spaced else ""
        size = rng.choice((1, 2, 3))
        paragraphs = [
            joint.join(filled[start : start + size]) for start in range(0, len(filled), size)
        ]
        return [
            rng.choice(language.hello).format_map(slots),
            *paragraphs,
            rng.choice(language.bye).format_map(slots),
        ]

    def _answer(self, draft: _Draft) -> None:
        """Make some ham an answer that quotes its question, and some spam pretend to be one."""
        if draft.kind in ("work", "list", "personal"):
            if self.recent and self.rng.random() < 0.4:
                self._quote(draft, self.rng.choice(self.recent))
            self.recent.append(draft)
        elif draft.label == "spam" and self.rng.random() < 0.1:
            draft.subject = "Re: " + draft.subject

    def _quote(self, draft: _Draft, question: _Draft) -> None:
        draft.language, draft.charset = question.language, question.charset
        draft.paragraphs = self._text(
            draft.kind, draft.language, _Slots(self.rng, draft.language, "ham")
        )
        draft.subject = "Re: " + question.subject.removeprefix("Re: ")
        quoted = [
            line
            for paragraph in question.paragraphs[:4]
            for line in paragraph.split("\n")
            if not line.startswith("> > ")
        ]
        draft.paragraphs.append(
            f"{question.sender_name}:\n" + "\n".join(f"> {line}" for line in quoted)
        )
        draft.references = [*question.references[-8:], question.message_id]

    def _address(self, host: str) -> str:
        names = ("info", "news", "service", _invent(self.rng, _LATIN), _invent(self.rng, _LATIN))
        return f"{self.rng.choice(names)}@{host}"

    # ---- header fields

    def _header(self, draft: _Draft) -> list[bytes]:
        rng, charset = self.rng, draft.charset
        recipient = f"{rng.choice(_USERS)}@home.example.org"
        undisclosed = 0.15 if draft.label == "spam" else 0.01
        fields = [f"Return-Path: <{draft.sender}>", *self._received(draft, recipient)]
        fields += [
            f"From: {_encoded(draft.sender_name, charset)} <{draft.sender}>",
            f"To: {'undisclosed-recipients:;' if rng.random() < undisclosed else recipient}",
            f"Subject: {_encoded(draft.subject, charset)}",
            f"Date: {self._date(draft.when)}",
            f"Message-ID: {draft.message_id}",
            "MIME-Version: 1.0",
        ]
        if draft.references:
            fields += [
                f"In-Reply-To: {draft.references[-1]}",
                "References: " + "\n ".join(draft.references),
            ]
        if rng.random() < 0.6:
            fields.append(f"X-Mailer: {rng.choice(_MAILERS)}")
        fields += self._bulk_fields(draft)
        return [line.encode("ascii") for line in fields]

    def _bulk_fields(self, draft: _Draft) -> list[str]:
        """What mailing lists, senders in bulk and signing hosts add."""
        fields = []
        if draft.kind == "list":
            name = draft.subject.partition("]")[0].removeprefix("Re: ").strip("[")
            name = name if name.isascii() else "users"
            fields += [
                f"List-Id: <{name}.lists.example.org>",
                f"List-Post: <mailto:{name}@lists.example.org>",
                "Precedence: list",
            ]
        elif draft.kind == "newsletter" or (draft.label == "spam" and self.rng.random() < 0.2):
            fields.append(
                f"List-Unsubscribe: <https://{draft.host}/u/{self.rng.getrandbits(48):x}>"
            )
        if self.rng.random() < (0.6 if draft.label == "ham" else 0.35):
            signature = base64.b64encode(self.rng.randbytes(96)).decode()
            tags = f"v=1; a=rsa-sha256; c=relaxed/relaxed; d={draft.host}; s=k1"
            fields.append(f"DKIM-Signature: {tags};\n\tb={signature[:64]}\n\t {signature[64:]}")
        return fields

    def _received(self, draft: _Draft, recipient: str) -> Iterator[str]:
        """Trace fields, newest first: our own server, then one to three hops back to the sender
        (RFC 5321, section 4.4).
        """
        rng, later = self.rng, 4.0
        hops = [draft.host, *(_host(rng, draft.label) for _ in range(rng.choice((0, 1, 1, 2))))]
        for place, source in enumerate(reversed(hops)):
            by = "mx.home.example.org" if place == 0 else hops[len(hops) - place]
            network = rng.choice(("192.0.2", "198.51.100", "203.0.113"))  # documentation: RFC 5737
            address = f"{network}.{rng.randrange(1, 255)}"
            yield (
                f"Received: from {source} ({source} [{address}])\n"
                f"\tby {by} (Postfix) with ESMTP id {rng.getrandbits(40):010X}\n"
                f"\tfor <{recipient}>; {self._date(draft.when + later)}"
            )
            later -= 1

    def _date(self, when: float) -> str:
        """RFC 5322 date in one of the zones."""
        return format_datetime(datetime.fromtimestamp(int(when), self.rng.choice(_ZONES)))

    # ---- body

    def _content(self, draft: _Draft) -> tuple[list[bytes], bytes]:
        """Header fields that describe the body, and the body."""
        structure = self.rng.choices(("plain", "html", "alternative"), _STRUCTURES[draft.kind])[0]
        parts = []
        if structure != "html":
            parts.append(self._part("plain", "\n\n".join(draft.paragraphs) + "\n", draft.charset))
        if structure != "plain":
            parts.append(self._part("html", self._html(draft), draft.charset))
        if draft.kind == "invitation":
            parts.append(self._part("calendar; method=REQUEST", self._calendar(draft), "utf-8"))
        content = parts[0] if len(parts) == 1 else self._multipart("alternative", parts)
        attachments = _ATTACHMENTS.get(draft.kind)
        if attachments and self.rng.random() < (0.9 if draft.kind == "malware" else 0.2):
            return self._multipart(
                "mixed", [content, self._attachment(*self.rng.choice(attachments))]
            )
        return content

    def _part(self, subtype: str, text: str, charset: str) -> tuple[list[bytes], bytes]:
        """A text part in its charset, with a transfer encoding that can carry it."""
        charset = _fitting(text, charset)
        data = text.encode(charset)
        transfer = (
            "7bit" if data.isascii() else self.rng.choice(("8bit", "quoted-printable", "base64"))
        )  # ISO-2022-JP is ASCII too
        if transfer == "quoted-printable":
            data = b2a_qp(data)
        elif transfer == "base64":
            data = base64.encodebytes(data)
        return [
            f"Content-Type: text/{subtype}; charset={charset}".encode(),
            f"Content-Transfer-Encoding: {transfer}".encode(),
        ], data

    def _html(self, draft: _Draft) -> str:
        rng = self.rng
        colour, width = f"#{rng.getrandbits(24):06x}", rng.choice((560, 600, 640))
        paragraphs = [
            escape(paragraph, quote=False).replace("\n", "<br>\n") for paragraph in draft.paragraphs
        ]
        link = (
            f'<a href="https://{_host(rng, draft.label)}/{rng.getrandbits(40):x}" '
            f'style="color:{colour}">{escape(draft.subject)}</a>'
        )
        image = (
            f'<img src="https://{draft.host}/i/{rng.getrandbits(48):x}.gif" width="1" height="1">'
            if rng.random() < 0.5
            else ""
        )
        body = "\n".join(f"<p>{paragraph}</p>" for paragraph in [*paragraphs, link])
        if rng.random() < 0.5:
            body = (
                f'<table width="{width}" cellpadding="0"><tr><td '
                f'style="font-family:sans-serif">\n{body}\n</td></tr></table>'
            )
        return (
            f"<!DOCTYPE html>\n<html><head><title></title></head><body>\n{body}{image}\n"
            "</body></html>\n"
        )

    def _calendar(self, draft: _Draft) -> str:
        """An iCalendar invitation (RFC 5545) on an hour of the next days."""
        day = time.strftime("%Y%m%d", time.gmtime(draft.when + 86_400 * self.rng.randint(1, 20)))
        hour = self.rng.randint(8, 17)
        return (
            "BEGIN:VCALENDAR\nVERSION:2.0\nMETHOD:REQUEST\nBEGIN:VEVENT\n"
            f"UID:{draft.message_id[1:-1]}\nDTSTART:{day}T{hour:02d}0000Z\n"
            f"DTEND:{day}T{hour + 1:02d}0000Z\nSUMMARY:{draft.subject}\n"
            f"ORGANIZER:mailto:{draft.sender}\nEND:VEVENT\nEND:VCALENDAR\n"
        )

    def _attachment(self, name: str, kind: str, beginning: bytes) -> tuple[list[bytes], bytes]:
        stem, _, extension = name.partition(".")
        name = f"{stem}_{self.rng.getrandbits(24)}.{extension}"
        headers = [
            f'Content-Type: {kind}; name="{name}"'.encode(),
            b"Content-Transfer-Encoding: base64",
            f'Content-Disposition: attachment; filename="{name}"'.encode(),
        ]
        return headers, base64.encodebytes(
            beginning + self.rng.randbytes(self.rng.randint(200, 4000))
        )

    def _multipart(
        self, subtype: str, parts: list[tuple[list[bytes], bytes]]
    ) -> tuple[list[bytes], bytes]:
        boundary = f"=_{self.rng.getrandbits(96):024x}"
        pieces = [
            b"\n".join([b"--" + boundary.encode(), *headers, b"", body]) for headers, body in parts
        ]
        headers = [f'Content-Type: multipart/{subtype}; boundary="{boundary}"'.encode()]
        return headers, b"\n".join(
            [
                b"This is a message in several parts.",
                *pieces,
                b"--" + boundary.encode() + b"--",
                b"",
            ]
        )


def _encoded(text: str, charset: str) -> str:
    """Text as it may stand in a header field: itself if ASCII, else encoded words of at most 75
    characters (RFC 2047).
    """
    if text.isascii():
        return text
    charset = _fitting(text, charset)
    chunks = [text[start : start + 10].encode(charset) for start in range(0, len(text), 10)]
    if max(text) < "\u0250":  # mostly ASCII letters
        return "\n ".join(
            f"=?{charset}?Q?{''.join([_Q[byte] for byte in chunk])}?=" for chunk in chunks
        )
    return "\n ".join(f"=?{charset}?B?{base64.b64encode(chunk).decode()}?=" for chunk in chunks)


def _fitting(text: str, charset: str) -> str:
    """The charset, or UTF-8 where an answer mixes in what it lacks (a Russian name over an English
    text).
    """
    try:
        text.encode(charset)
    except UnicodeEncodeError:
        return "utf-8"
    return charset


def generate(n: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`n` messages in order of arrival as (label, raw): "spam" (about 40 %) or "ham", and the bytes
    of the message.
    """
    writer = _Writer(seed)
    for _ in range(n):
        yield writer.message()


def write(directory: Path, n: int, seed: int) -> None:
    """Write `n` messages as a TREC corpus: `index` ("spam data/00001") and data/. Raises
    FileExistsError rather than mix two corpora.
    """
    (directory / "data").mkdir(parents=True)
    with (directory / "index").open("x", encoding="ascii") as index:
        for number, (label, raw) in enumerate(generate(n, seed), 1):
            name = f"data/{number:05d}"
            (directory / name).write_bytes(raw)
            index.write(f"{label} {name}\n")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Write a corpus of made-up mail: DIRECTORY/index and DIRECTORY/data/."
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIRECTORY", help="where to; must not hold a corpus yet"
    )
    parser.add_argument(
        "--messages", type=int, default=1000, metavar="N", help="how many (default: 1000)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="the same seed gives the same mail (default: 1)",
    )
    chosen = parser.parse_args(arguments)
    try:
        write(chosen.directory, chosen.messages, chosen.seed)
    except OSError as error:
        print(
            f"synthetic.py: {chosen.directory}: {error.strerror or error}; choose a new directory",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
