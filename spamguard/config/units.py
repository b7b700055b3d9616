"""Durations and sizes as people write them: `30s`, `1.5h`, `20MB`, `512KiB`. Pure: words in, numbers out, and back."""

from __future__ import annotations

import re

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SHOWN = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_QUANTITY = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,6})?) ?([A-Za-z]+)")
DURATION = r"[0-9]{1,16}(\.[0-9]{1,6})? ?[sSmMhHdD]"  # for editors, which know patterns only
SIZE = r"[0-9]{1,16}(\.[0-9]{1,6})? ?([kKmMgG][iI]?)?[bB]"
_PASSWORD = re.compile(r"(?<=//)[^/\s]*@")
_PLAIN = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?|(?i:true|false)")
_LONGEST = 366 * 86400  # seconds
_LARGEST = 1 << 50  # bytes


def seconds(given: object) -> float:
    """Seconds of `30s`, `10m`, `2h`, `1d`. ValueError."""
    return _quantity(given, _SECONDS, _LONGEST, "a duration such as 30s, 10m, 2h or 1d")


def days(given: object) -> int:
    """Days of `30d`. ValueError: not a whole number of them."""
    whole, rest = divmod(seconds(given), _SECONDS["d"])
    if rest:
        raise ValueError(f"expected whole days such as 30d, found {given}")
    return int(whole)


def size(given: object) -> int:
    """Bytes of `20MB` (millions), `20MiB` (2**20 each), `512KiB`, `100B`. ValueError."""
    return int(_quantity(given, _BYTES, _LARGEST, "a size such as 512KiB, 20MB or 1GiB"))


def _quantity(given: object, units: dict[str, int], most: int, expected: str) -> float:
    match = _QUANTITY.fullmatch(given) if isinstance(given, str) else None
    if match is None or match[2].lower() not in units:
        without = " without a unit" if isinstance(given, int | float) and not isinstance(given, bool) else ""
        raise ValueError(f"expected {expected}, found {shown(given)}{without}")
    number = float(match[1]) * units[match[2].lower()]
    if not 0 < number <= most:
        raise ValueError(f"expected {expected}, above 0 and not endless, found {given}")
    return number


def shown(given: object) -> str:
    """What was found, for a message: short, in one line, as YAML would call it, without what may be a password in an address."""
    if isinstance(given, dict | list):
        return "a mapping" if isinstance(given, dict) else "a list"
    if given is None or isinstance(given, bool):
        return {None: "nothing", True: "true", False: "false"}[given]
    text = _PASSWORD.sub("…@", str(given))
    return repr(text if len(text) <= 60 else text[:57] + "…") if isinstance(given, str) else text


def unquoted(given: object) -> str:
    """What to do about a number or a truth value that quotes have made a text."""
    return ": leave the quotes out" if isinstance(given, str) and _PLAIN.fullmatch(given) else ""


def duration_text(value: float) -> str:
    """`30m`: the largest unit that gives a whole number, so that `seconds` of it is the same number again."""
    for unit, length in reversed(_SECONDS.items()):
        if value >= length and value % length == 0:
            return f"{value / length:.0f}{unit}"
    return f"{value:.6f}".rstrip("0").rstrip(".") + "s"


def days_text(value: int) -> str:
    """`30d`."""
    return f"{value}d"


def size_text(value: int) -> str:
    """`512MiB`: the shortest way to say it without loss."""
    told = [f"{value // length}{unit}" for unit, length in _SHOWN if value % length == 0]
    return min([*told, f"{value}B"], key=len)
