"""Functions that templates call to format values: numbers, times, verdicts, texts of strangers.

A letter that acts on its surroundings must never get through: one that turns the direction of a
line, hides text, or breaks out of a field. Templates escape everything by themselves, so nothing is
escaped here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from urllib.parse import quote

from markupsafe import Markup

from spamguard.log import utc_datetime

# Not printable for Unicode, but harmless: line ends, tabs, and the joiners that Persian, Hindi and
# emoji need.
_HARMLESS = frozenset("\n\t\u200c\u200d")
_ACTIONS = {
    "tag": "tagged",
    "quarantine": "held back",
    "redirect": "redirected",
    "defer": "deferred",
    "reject": "refused",
}
_TONES = {"unsure": "unsure", "not-scanned": "none"}
UNDECIDED = list(_TONES)
"""Labels that are not classes."""
_THOUSANDS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


def make_visible(value: object) -> object:
    """Make harmful letters of a text visible; return any other value as it is.

    Templates apply it to everything they put out.

    >>> make_visible("evil\u202egpj.exe")
    'evil⟨U+202E⟩gpj.exe'
    """
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(
        letter if letter.isprintable() or letter in _HARMLESS else _visible_letter(letter)
        for letter in value
    )


def _visible_letter(letter: str) -> str:
    number = ord(letter)
    if number < 0x20:
        return chr(0x2400 + number)  # Unicode has pictures of control characters
    if number == 0x7F:
        return "\u2421"
    return " " if unicodedata.category(letter) == "Zs" else f"⟨U+{number:04X}⟩"


def label_text(label: str) -> str:
    """Name a verdict or class.

    >>> label_text("not-scanned")
    'not scanned'
    """
    return "not scanned" if label == "not-scanned" else label


def action_text(action: str) -> str:
    """Say what was done with a message (`config.options.Action`)."""
    return _ACTIONS.get(action, action)


def tone(label: str, unwanted: Mapping[str, bool]) -> str:
    """Return the tone of a label, which has a colour and a sign: one of `charts.TONES`.

    unwanted: whether each class is.
    """
    return _TONES.get(label) or ("unwanted" if unwanted.get(label, label == "spam") else "wanted")


def number(value: float) -> str:
    """Format a number.

    >>> number(1234), number(1234.5)
    ('1,234', '1,234.5')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def brief(value: int) -> str:
    """Format a round number where there is little room.

    >>> brief(8000), brief(10_000)
    ('8,000', '10k')
    """
    unit, letter = next((unit for unit in _THOUSANDS if value >= unit[0]), (1, ""))
    return f"{value // unit:,}{letter}" if value >= 10_000 else f"{value:,}"


def plural(value: int, noun: str) -> str:
    """Return the noun in singular or plural.

    >>> plural(1, "message"), plural(2, "message")
    ('message', 'messages')
    """
    return noun if value == 1 else f"{noun}s"


def count_noun(value: int, noun: str) -> str:
    """Format a number with its noun.

    >>> count_noun(2000, "message")
    '2,000 messages'
    """
    return f"{value:,} {plural(value, noun)}"


def percent(share: float) -> str:
    """Format a share; 0 % and 100 % only if it is exactly that.

    >>> percent(0.987), percent(0.9999)
    ('98.7 %', '> 99.9 %')
    """
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{share:.0%}".replace("%", " %") if share in (0, 1) else f"{share * 100:.1f} %"


def size(octets: int) -> str:
    """Format a size; 1 kB is 1,024 bytes.

    >>> size(5300)
    '5.2 kB'
    """
    for factor, unit in _UNITS:
        if octets >= factor:
            return f"{octets / factor:.1f} {unit}"
    return count_noun(octets, "byte")


def signed(part: float) -> str:
    """Format a part of a sum with its sign, a true minus sign.

    >>> signed(1.2341)
    '+1.234'
    """
    return f"{part:+.3f}".replace("-", "\u2212")


def moment(seconds: float, *, exact: bool = False) -> Markup:
    """Format a time in UTC, which the script changes to the reader's time zone.

    exact: with seconds.
    """
    when = utc_datetime(seconds)
    text = when.strftime("%Y-%m-%d %H:%M:%S UTC" if exact else "%Y-%m-%d %H:%M UTC")
    return Markup('<time datetime="{}">{}</time>').format(when.strftime("%Y-%m-%dT%H:%M:%SZ"), text)


def day(seconds: float) -> str:
    """Format the day of a time, in UTC."""
    return utc_datetime(seconds).strftime("%Y-%m-%d")


def url_quote(text: str) -> str:
    """Encode any text for an address or a hidden field, so that it comes back unchanged."""
    return quote(text, safe="", errors="replace")


def clock(seconds: float, span: float) -> str:
    """Format a label of an axis of time, in UTC: hour, day or month, depending on the span.

    >>> clock(0, 3600), clock(0, 7 * 86400)
    ('00:00', '01 Jan')
    """
    if span < 2 * 86400:
        return utc_datetime(seconds).strftime("%H:%M")
    return utc_datetime(seconds).strftime("%d %b" if span <= 300 * 86400 else "%Y-%m")
