"""How values are told on a page: numbers with their units, times, verdicts, and texts that strangers wrote.

Must never let a letter through that acts on what stands around it: turns the direction of a line, hides, breaks out of a field.
Escaping is not done here but by the templates, for everything.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from urllib.parse import quote

from markupsafe import Markup

from spamguard.times import utc

_HARMLESS = frozenset("\n\t\u200c\u200d")
"""Unprintable by Unicode's word but without power here: line ends, tabs, and the joiners that Persian, Hindi and emoji need."""

_NAMES = {"ham": "not spam", "not-scanned": "not scanned"}
_DONE = {"tag": "tagged", "quarantine": "held back", "redirect": "redirected", "defer": "put off", "reject": "refused"}
_TONES = {"unsure": "unsure", "not-scanned": "none"}
UNDECIDED = list(_TONES)
"""Labels that are no class."""
_THOUSANDS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


def shown(value: object) -> object:
    """What a template puts out in place of any value: texts with letters that act made visible, all else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(letter if letter.isprintable() or letter in _HARMLESS else _visible(letter) for letter in value)


def _visible(letter: str) -> str:
    """Pictures for control characters (U+2400 …), a space for a space, the number of the rest: ⟨U+202E⟩."""
    number = ord(letter)
    if number < 0x20:
        return chr(0x2400 + number)
    if number == 0x7F:
        return "\u2421"
    return " " if unicodedata.category(letter) == "Zs" else f"⟨U+{number:04X}⟩"


def named(label: str) -> str:
    """A verdict or class in words."""
    return _NAMES.get(label, label)


def done(action: str) -> str:
    """What was decided about a message (`settings.Action`), in words."""
    return _DONE.get(action, action)


def tone(label: str, unwanted: Mapping[str, bool]) -> str:
    """Which of four colours and signs a label has: "wanted", "unwanted", "unsure", "none". unwanted: of each class."""
    return _TONES.get(label) or ("unwanted" if unwanted.get(label, label == "spam") else "wanted")


def number(value: float) -> str:
    """1,234 or 1,234.5."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def brief(value: int) -> str:
    """A round number where there is little room: 8,000, 10k, 2M."""
    unit, letter = next((unit for unit in _THOUSANDS if value >= unit[0]), (1, ""))
    return f"{value // unit:,}{letter}" if value >= 10_000 else f"{value:,}"


def plural(value: int, one: str) -> str:
    """message, messages."""
    return one if value == 1 else f"{one}s"


def counted(value: int, one: str) -> str:
    """1 message, 2 messages."""
    return f"{value:,} {plural(value, one)}"


def percent(share: float) -> str:
    """98.7 %; never 0 or 100 for what is only near to it."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{share:.0%}".replace("%", " %") if share in (0, 1) else f"{share * 100:.1f} %"


def size(octets: int) -> str:
    """5.2 kB; 1 kB is 1,024 bytes."""
    for factor, unit in _UNITS:
        if octets >= factor:
            return f"{octets / factor:.1f} {unit}"
    return counted(octets, "byte")


def signed(part: float) -> str:
    """+1.234, with a true minus sign."""
    return f"{part:+.3f}".replace("-", "\u2212")


def moment(seconds: float, *, exact: bool = False) -> Markup:
    """A point in time, in UTC; the script puts it into the reader's own zone, with the seconds where there are any. seconds: since 1970."""
    when = utc(seconds)
    text = when.strftime("%Y-%m-%d %H:%M:%S UTC" if exact else "%Y-%m-%d %H:%M UTC")
    return Markup('<time datetime="{}">{}</time>').format(when.strftime("%Y-%m-%dT%H:%M:%SZ"), text)


def day(seconds: float) -> str:
    """The day of a point in time, in UTC."""
    return utc(seconds).strftime("%Y-%m-%d")


def quoted(text: str) -> str:
    """As a value in an address, or in a field that nobody sees: it comes back as it was, whatever letters it has."""
    return quote(text, safe="", errors="replace")


def clock(seconds: float, span: float) -> str:
    """What stands on an axis of time, in UTC: the hour, or the day on one that spans two or more, or the month. span: seconds."""
    when = utc(seconds)
    return when.strftime("%H:%M" if span < 2 * 86400 else "%d %b" if span <= 300 * 86400 else "%Y-%m")
