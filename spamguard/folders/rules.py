"""What an entry of `watch:` comes to: the role of each folder, whether somebody files spam before a person sees it, what counts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from spamguard.folders import evidence, names, roles
from spamguard.folders.contract import Mailbox
from spamguard.folders.evidence import Asked
from spamguard.folders.values import Role
from spamguard.settings import Protocol, Settings, Watch

_ROLES = 50_000  # folders whose roles are kept: people make and rename as many as they like

RoleOf = Callable[[str], Role]
"""The role of a folder by its directory."""


class Entry(NamedTuple):
    """watch: as configured. we_file: see `is_filed`. asked: the evidence that counts."""

    watch: Watch
    role: RoleOf
    we_file: bool
    asked: Asked


def entries(settings: Settings, special: Mapping[tuple[str, ...], str]) -> list[Entry]:
    """All of them. special: as in `roles.role`."""
    return [Entry(watch, role_of(watch, special), is_filed(watch, settings), evidence.asked(watch)) for watch in settings.watch]


def role_of(watch: Watch, special: Mapping[tuple[str, ...], str]) -> RoleOf:
    """special: as in `roles.role`."""
    configured = {pattern: roles.parse_role(text) for pattern, text in watch.folders}

    @lru_cache(_ROLES)
    def role(directory: str) -> Role:
        name = names.parts(directory)
        return roles.role(name, configured, special) if name else roles.IGNORED

    return role


def is_filed(watch: Watch, settings: Settings) -> bool:
    """Whether what we tag as spam is put into Junk on delivery."""
    return is_next_hop(watch, settings) if watch.we_file is None else watch.we_file


def idle(settings: Settings, found: Iterable[Mailbox]) -> tuple[str, ...]:
    """What is wrong with patterns that no mailbox fits, in words; not with those of Maildirs that we make with the first mail."""
    fitting = {mailbox.watch for mailbox in found}
    some = [watch for number, watch in enumerate(settings.watch) if number not in fitting and not is_next_hop(watch, settings)]
    return tuple(f"watch: nothing fits {watch.maildir} yet: until something does, moving mail there teaches nothing" for watch in some)


def is_next_hop(watch: Watch, settings: Settings) -> bool:
    """Whether it is a Maildir that we deliver to ourselves."""
    hops = [listener.next_hop.endpoint for listener in settings.listeners]
    return any(hop.protocol is Protocol.MAILDIR and str(hop.path) == watch.maildir for hop in hops)
