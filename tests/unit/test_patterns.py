"""Regular expressions mean the same to every Python that we run on.

Up to 3.11.4, which Debian 12 has, a possessive group whose last try fails behind a repetition keeps
what that try had taken (https://github.com/python/cpython/issues/106052): `(?:ab?c)*+` takes all of
"aca". With an empty alternative at its end nothing fails.
"""

from __future__ import annotations

import re
import re._constants as kinds
import re._parser as parser
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from spamguard.mail.message import _field_pattern

ROOT = Path(__file__).parents[2]
_ONE = {kinds.LITERAL, kinds.NOT_LITERAL, kinds.IN, kinds.ANY, kinds.CATEGORY, kinds.AT}


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Those that modules keep, by where; and one that is put together when it is needed."""
    for file in (ROOT / "spamguard").rglob("*.py"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if file.name != "__main__.py":
            for name, value in vars(import_module(module.removesuffix(".__init__"))).items():
                yield from ((f"{module}.{name}", found) for found in within(value))
    yield "spamguard.mail.message._field_pattern", _field_pattern((b"x-*", b"y"), by_cr=True)


def within(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | tuple | list | set | frozenset) and depth < 4:
        for one in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from within(one, depth + 1)


def unsafe(tree: Iterable[Any]) -> bool:
    """Whether an atomic or possessive group in it may fail with something taken, and does not end
    in an empty alternative.
    """
    for kind, value in tree:
        if kind is kinds.ATOMIC_GROUP:
            return True
        if kind is kinds.POSSESSIVE_REPEAT and keeps(list(value[2])):
            return True
        if any(map(unsafe, inside(kind, value))):
            return True
    return False


def inside(kind: Any, value: Any) -> list[Any]:
    if kind is kinds.BRANCH:
        return list(value[1])
    if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT):
        return [value[2]]
    if kind in (kinds.ASSERT, kinds.ASSERT_NOT):
        return [value[1]]
    return [value[3]] if kind is kinds.SUBPATTERN else []


def keeps(body: list[Any]) -> bool:
    while len(body) == 1 and body[0][0] is kinds.SUBPATTERN:
        body = list(body[0][1][3])
    if len(body) == 1 and body[0][0] is kinds.BRANCH:
        choices = [list(choice) for choice in body[0][1][1]]
        return bool(choices[-1]) and not all(
            kind in _ONE for choice in choices for kind, _ in choice
        )
    *first, (kind, value) = body
    last = kind in _ONE or (
        kind is kinds.POSSESSIVE_REPEAT
        and value[0] == 0
        and len(value[2]) == 1
        and value[2][0][0] in _ONE
    )
    return not (last and all(kind in _ONE for kind, _ in first))


@pytest.mark.slow
def test_no_possessive_group_may_fail_with_something_taken() -> None:
    found = dict(patterns())
    assert len(found) > 150
    assert [
        where
        for where, pattern in found.items()
        if unsafe(parser.parse(pattern.pattern, pattern.flags))
    ] == []
