"""What the settings of a watch come to: the role of each folder, and whether somebody files spam before a person sees it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from spamguard.folders import names, roles
from spamguard.folders.values import Role
from spamguard.settings import Protocol, Settings, Watch

_ROLES = 50_000  # folders whose roles are kept: people make and rename as many as they like

RoleOf = Callable[[str], Role]
"""The role of a folder by its directory."""


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
    if watch.we_file is not None:
        return watch.we_file
    hops = [listener.next_hop.endpoint for listener in settings.listeners]
    return any(hop.protocol is Protocol.MAILDIR and str(hop.path) == watch.maildir for hop in hops)


def display(directory: str) -> str:
    """A folder as mail programs show it, as text: bytes that are no UTF-8 are written out."""
    name = "/".join(names.parts(directory) or (directory,))
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
