"""What Dovecot's configuration says about folders: special uses (RFC 6154) are not in a Maildir.

`read` asks `doveconf -n`; `parse` is pure and knows the settings of Dovecot 2.3 and 2.4. Must never
wait for long, and never fail: without Dovecot nothing is known, and names of folders decide.

It is written by hand because no library reads what `doveconf` prints.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from spamguard.config.options import Settings
from spamguard.errors import SpamguardError
from spamguard.folders.broker import is_maildir
from spamguard.folders.mailboxes import Mailboxes
from spamguard.folders.roles import is_next_hop

_log = logging.getLogger("spamguard.folders")

_COMMAND = ("doveconf", "-n")
_TIMEOUT = 10.0
_MAX_OUTPUT = 4 << 20  # characters
_MAX_MAILBOXES = 1000  # that are checked for a Maildir
_SECTION = re.compile(r"(\S+)(?:\s+(\S.*?))?\s*\{")
_SETTING = re.compile(r"(\S+)\s*=\s*(.*)")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HOME = re.compile(r"^(%h|%\{home\})(?=/|$)")
_SETTINGS_SINCE_2_4 = (
    "mail_driver",
    "mail_path",
    "mail_inbox_path",
    "mailbox_list_layout",
    "mailbox_directory_name",
)
_REMEDY = "let Dovecot tell by IMAPSieve"
_YES_WORDS = frozenset(("yes", "y", "true", "1"))
_OTHER_FORMATS = frozenset(("mdbox", "sdbox", "dbox", "mbox", "obox", "imapc", "pop3c", "cydir"))


class DovecotSettings(NamedTuple):
    """What matters for watching.

    mail_format: of the mailboxes, "" if unknown. special_uses: by name of the folder, without the
    namespace's prefix. obstacles: what stands in the way of watching, one line each.
    """

    mail_format: str = ""
    special_uses: Mapping[tuple[str, ...], str] = {}
    obstacles: tuple[str, ...] = ()


class _MailLocation(NamedTuple):
    """Where mail is, with Dovecot's variables. subdirectory: of a folder, for its messages."""

    mail_format: str
    path: str
    inbox: str
    layout: str
    subdirectory: str


@dataclass(slots=True)
class _Section:
    kind: str = ""
    name: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    sections: list[_Section] = field(default_factory=list)

    def subsections(self, kind: str) -> Iterator[_Section]:
        return (section for section in self.sections if section.kind == kind)

    def is_yes(self, setting: str) -> bool:
        return self.settings.get(setting, "").lower() in _YES_WORDS


def read(configuration: str = "") -> DovecotSettings:
    """The settings of a configuration, by default the usual one; empty if `doveconf` cannot be
    asked, which is logged.
    """
    command = [*_COMMAND, *(("-c", configuration) if configuration else ())]
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT
        )
        return parse(done.stdout.decode(errors="surrogateescape"))
    except FileNotFoundError:
        _log.info(
            "there is no doveconf: "
            "the roles of folders come from the configuration and from their names"
        )
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.decode(errors="replace").split())
        _log.warning(
            "doveconf failed, so Dovecot's special uses of folders are not known: %s", reason[:500]
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning(
            "doveconf cannot be asked, so Dovecot's special uses of folders are not known: %s",
            error,
        )
    return DovecotSettings()


def find_obstacles(
    dovecot: DovecotSettings, settings: Settings, mailboxes: Mailboxes
) -> Sequence[str]:
    """The obstacles that matter for what is watched. If Dovecot has no Maildirs, there are none:
    watched Maildirs are not Dovecot's then.
    """
    if dovecot.mail_format not in _OTHER_FORMATS:
        return dovecot.obstacles
    if all(is_next_hop(watch, settings) for watch in settings.watch):
        return ()  # the Maildir may come yet, with the first mail
    with suppress(SpamguardError, OSError):  # the watcher reports them
        some = islice(mailboxes.find_mailboxes(), _MAX_MAILBOXES)
        if any(is_maildir(mailboxes, mailbox, if_unreadable=True) for mailbox in some):
            return ()
    return dovecot.obstacles


def parse(text: str) -> DovecotSettings:
    """What `doveconf -n` of Dovecot 2.3 or 2.4 writes. Lines that make no sense are skipped.

    >>> parse("mail_location = maildir:~/Maildir").mail_format
    'maildir'
    """
    top = _parse_sections(text[:_MAX_OUTPUT])
    location = _find_location(top)
    default = "/" if location.layout == "fs" else "."
    separator = _main_namespace(top).settings.get("separator", "") or default
    uses, obstacles = _find_special_uses(top, separator), tuple(_list_obstacles(top, location))
    return DovecotSettings(location.mail_format, uses, obstacles)


def _parse_sections(text: str) -> _Section:
    top = _Section()
    open_sections = [top]
    for line in map(str.strip, text.splitlines()):
        if line.startswith("#"):
            continue
        if line == "}":
            open_sections = open_sections[:-1] or [top]
        elif setting := _SETTING.fullmatch(line):
            open_sections[-1].settings[setting[1]] = _unquote(setting[2])
        elif opened := _SECTION.fullmatch(line):
            section = _Section(opened[1], _unquote(opened[2] or ""))
            open_sections[-1].sections.append(section)
            open_sections.append(section)
    return top


def _unquote(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text


def _find_location(top: _Section) -> _MailLocation:
    """Since 2.4 there is a setting for each; before there was one for all, such as
    `maildir:~/Maildir:LAYOUT=fs`.
    """
    own = _main_namespace(top).settings
    settings = top.settings | {name: value for name, value in own.items() if value}
    if "mail_driver" in settings or "mail_path" in settings:
        driver, path, *values = (settings.get(name, "") for name in _SETTINGS_SINCE_2_4)
    else:
        location = settings.get("location") or settings.get("mail_location", "")
        driver, path, *fields = (*location.split(":"), "")
        options = dict(field.partition("=")[::2] for field in fields)
        values = [options.get(name, "") for name in ("INBOX", "LAYOUT", "DIRNAME")]
    inbox, layout, subdirectory = values
    return _MailLocation(driver.lower(), path, inbox, layout.lower(), subdirectory)


def _main_namespace(top: _Section) -> _Section:
    return next(
        (section for section in top.subsections("namespace") if section.is_yes("inbox")), _Section()
    )


def _find_special_uses(top: _Section, separator: str) -> dict[tuple[str, ...], str]:
    uses = {}
    for namespace in filter(_is_in_main_store, top.subsections("namespace")):
        prefix = namespace.settings.get("prefix", "")
        for mailbox in namespace.subsections("mailbox"):
            name = mailbox.settings.get("name", "") or mailbox.name
            name = name.removeprefix(prefix) or name
            if use := mailbox.settings.get("special_use", ""):
                uses[tuple(name.split(namespace.settings.get("separator", "") or separator))] = use
    return uses


def _is_in_main_store(namespace: _Section) -> bool:
    """Folders of other users, and those that lie elsewhere, have names of their own."""
    settings = namespace.settings
    is_elsewhere = any(settings.get(name) for name in ("location", "mail_path", "mail_driver"))
    is_private = settings.get("type", "private") == "private"
    return namespace.is_yes("inbox") or (is_private and not is_elsewhere)


def _list_obstacles(top: _Section, location: _MailLocation) -> Iterator[str]:
    if location.mail_format in _OTHER_FORMATS:
        yield (
            f"Dovecot keeps its mail as {location.mail_format}, not as Maildir: "
            f"its folders cannot be watched, {_REMEDY}"
        )
    elif location.layout == "index" or location.subdirectory:
        yield (
            "Dovecot keeps folders in directories of other names (LAYOUT=index, DIRNAME=): "
            f"which is Junk cannot be seen, {_REMEDY}"
        )
    elif location.inbox and not f"{_fold_home(location.inbox)}/".startswith(
        f"{_fold_home(location.path)}/"
    ):
        yield (
            f"Dovecot keeps INBOX apart from other folders ({location.inbox}): "
            f"moving from one to the other teaches nothing, {_REMEDY}"
        )
    plugins = _plugins(top)
    if plugins & {"zlib", "mail_compress"}:
        # A setting of the plugin's before 2.4, one of its own since.
        methods = [plugin.settings.get("zlib_save") for plugin in top.subsections("plugin")]
        if "lz4" in (*methods, top.settings.get("mail_compress_write_method")):
            yield (
                "Dovecot compresses with lz4, which cannot be read here: "
                f"choose zstd or gz, or {_REMEDY}"
            )
    if "mail_crypt" in plugins:
        yield f"Dovecot's plugin mail_crypt is on: encrypted messages cannot be read, {_REMEDY}"


def _fold_home(path: str) -> str:
    """A path with the home directory written in one way."""
    return _HOME.sub("~", path.rstrip("/"))


def _plugins(section: _Section) -> set[str]:
    """Plugins of all protocols: a list of words before 2.4, a section of switches since."""
    names = set(section.settings.get("mail_plugins", "").split())
    for inner in section.sections:
        if inner.kind == "mail_plugins":
            names |= {name for name in inner.settings if inner.is_yes(name)}
        elif inner.kind in ("protocol", "local", "remote"):
            names |= _plugins(inner)
    return names
