"""The configuration: YAML to `settings.Settings` and back, with every mistake told at its line, all of them at once.

Must never raise anything but `ConfigError`, whatever the file holds, and never fill in a default of its own for what the
settings have one. Imported by the master process and the commands only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spamguard.config import files, mistakes, tree
from spamguard.config.checks import warnings
from spamguard.config.effective import effective
from spamguard.config.mistakes import Document
from spamguard.errors import ConfigError
from spamguard.settings import Position, Settings

__all__ = ["DEFAULT_LISTEN", "effective", "from_command_line", "load", "warnings"]

DEFAULT_LISTEN = "smtp://127.0.0.1:10025"
_PAGE = "127.0.0.1:10088"  # not 10080: browsers refuse that port


def load(path: Path) -> Settings:
    """The settings that a file tells. ConfigError: everything that is wrong with it, and where."""
    return mistakes.settings(_read(path))


def from_command_line(
    file: Path | None,
    *,
    usual_state: Path,
    state: Path | None = None,
    listen: str | None = None,
    next_hop: str | None = None,
    watch: Sequence[str] = (),
) -> Settings:
    """The settings of a file, or the usual ones, with what the command line says in place of what the file says.

    usual_state: the state directory where neither names one. ConfigError.
    """
    document = _usual(state or usual_state, elsewhere=next_hop is not None) if file is None else _read(file)
    if state is not None:
        document.replace(("state",), str(state.absolute()), "--state")
    document.supply("state", str(usual_state.absolute()))
    if listen is not None:
        document.replace_in_listener("listen", listen, "--listen")
    if next_hop is not None:
        document.replace_in_listener("next_hop", next_hop, "--next-hop")
    if watch:
        document.replace(("watch",), list(watch), "--watch")
    return mistakes.settings(document)


def _read(path: Path) -> Document:
    try:
        with files.opened(path) as file:
            return Document(str(path), tree.parse(file.read(tree.LONGEST + 1)))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions") from error


def _usual(state: Path, *, elsewhere: bool) -> Document:
    """What holds without a file: good for a first try, harmless everywhere. elsewhere: mail does not go into our own Maildir."""
    maildir = f"{state.absolute() / 'Maildir'}"
    listener = {"listen": DEFAULT_LISTEN, "position": str(Position.STANDALONE), "next_hop": f"maildir:{maildir}"}
    return Document("", tree.Tree({"listeners": [listener], "web": _PAGE, "watch": [] if elsewhere else [maildir]}))
