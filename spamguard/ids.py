"""Names of messages on their way through: in the log, in X-Spamguard, in the history and in the quarantine.

Pure: the clock and the dice are the caller's. Must never let anything pass for a name that means something to a file system.
"""

from __future__ import annotations

import re
from base64 import b32hexdecode
from itertools import product

RANDOM_BYTES = 4
_TIME_BYTES = 6
LAST = 2.0**47 / 1000
"""Seconds since 1970 up to which names are surely made."""
_PAIRS = ["".join(pair) for pair in product("0123456789abcdefghijklmnopqrstuv", repeat=2)]
_NAME = re.compile(r"[0-9a-v]{16}")


def new_id(now: float, random: bytes) -> str:
    """A new name: 16 characters, 48 bits of time in ms, then 32 random bits. Names sort by time.

    now: seconds since 1970. random: `RANDOM_BYTES` bytes, other ones each time. The alphabet is that of RFC 4648, section 7,
    in lower case: unlike that of section 6 it keeps the order of what it encodes.
    """
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a name takes {RANDOM_BYTES} random bytes, not {len(random)}")
    number = int.from_bytes(int(now * 1000).to_bytes(_TIME_BYTES, "big") + random, "big")
    return "".join([_PAIRS[number >> bits & 1023] for bits in range(70, -1, -10)])


def time_of(name: str) -> float:
    """When a name was made, in seconds since 1970, to the millisecond."""
    return int.from_bytes(b32hexdecode(name.upper())[:_TIME_BYTES], "big") / 1000


def is_id(text: str) -> bool:
    """Whether it has the form of such a name."""
    return _NAME.fullmatch(text) is not None
