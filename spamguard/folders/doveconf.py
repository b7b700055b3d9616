"""What Dovecot says about its folders, where there is one: special uses (RFC 6154) are not stored
in a Maildir.

`parse` is pure. Must never wait for long, and never fail: without Dovecot there is simply nothing
known.
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
_MAX_OUTPUT = 4 << 20  # characters of its output
_MAX_MAILBOXES = 1000  # that are looked at for a Maildir
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
    """store: format of the mailboxes, "" when nothing tells. special: name of a folder, without the
    namespace's prefix, to its special use. notes: what stands in the way of watching, one line
    each.
    """

    mail_format: str = ""
    special_uses: Mapping[tuple[str, ...], str] = {}
    obstacles: tuple[str, ...] = ()


class _MailLocation(NamedTuple):
    """Where mail is, as Dovecot writes it, variables and all. within: directory of a folder's
    messages below the folder's own.
    """

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
    """Ask `doveconf -n`, of the given configuration or the usual one; nothing known when it cannot
    be asked, which is logged.
    """
    command = [*_COMMAND, *(("-c", configuration) if configuration else ())]
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT
        )
    except FileNotFoundError:
        _log.info(
            "there is no doveconf: the roles of folders come from the configuration and from their names"
        )
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.decode(errors="replace").split())
        _log.warning(
            "doveconf failed, so Dovecot's special uses of folders are not known: %s", said[:500]
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning(
            "doveconf cannot be asked, so Dovecot's special uses of folders are not known: %s",
            error,
        )
    else:
        return parse(done.stdout.decode(errors="surrogateescape"))
    return DovecotSettings()


def find_obstacles(
    server: DovecotSettings, settings: Settings, mailboxes: Mailboxes
) -> Sequence[str]:
    """Notes that matter for what is watched: none where Dovecot has no Maildirs, so that those
    which are watched are not its own.
    """
    if server.mail_format not in _OTHER_FORMATS:
        return server.obstacles
    if all(
        is_next_hop(watch, settings) for watch in settings.watch
    ):  # it may come yet, with the first mail
        return ()
    with suppress(SpamguardError, OSError):  # of which others tell
        return (
            ()
            if any(
                is_maildir(mailboxes, one, if_unreadable=True)
                for one in islice(mailboxes.find_mailboxes(), _MAX_MAILBOXES)
            )
            else server.obstacles
        )
    return server.obstacles


def parse(text: str) -> DovecotSettings:
    """What `doveconf -n` of Dovecot 2.3 or 2.4 wrote; lines that make no sense are passed over."""
    top = _parse_sections(text[:_MAX_OUTPUT])
    location = _find_location(top)
    separator = _main_namespace(top).settings.get("separator", "") or (
        "/" if location.layout == "fs" else "."
    )
    return DovecotSettings(
        location.mail_format,
        _find_special_uses(top, separator),
        tuple(_list_obstacles(top, location)),
    )


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
    """A setting for each since 2.4, before that one, such as `maildir:~/Maildir:LAYOUT=fs`."""
    settings = top.settings | {
        name: value for name, value in _main_namespace(top).settings.items() if value
    }
    if "mail_driver" in settings or "mail_path" in settings:
        store, path, inbox, layout, within = (
            settings.get(name, "") for name in _SETTINGS_SINCE_2_4
        )
    else:
        location = settings.get("location") or settings.get("mail_location", "")
        store, path, *options = (*location.split(":"), "")
        given = dict(option.partition("=")[::2] for option in options)
        inbox, layout, within = (given.get(name, "") for name in ("INBOX", "LAYOUT", "DIRNAME"))
    return _MailLocation(store.lower(), path, inbox, layout.lower(), within)


def _main_namespace(top: _Section) -> _Section:
    return next(
        (section for section in top.subsections("namespace") if section.is_yes("inbox")), _Section()
    )


def _find_special_uses(top: _Section, separator: str) -> dict[tuple[str, ...], str]:
    found = {}
    for namespace in filter(_is_in_main_store, top.subsections("namespace")):
        prefix = namespace.settings.get("prefix", "")
        for mailbox in namespace.subsections("mailbox"):
            name = mailbox.settings.get("name", "") or mailbox.name
            name = name.removeprefix(prefix) or name
            if use := mailbox.settings.get("special_use", ""):
                found[tuple(name.split(namespace.settings.get("separator", "") or separator))] = use
    return found


def _is_in_main_store(namespace: _Section) -> bool:
    """Folders of other people, and those that lie elsewhere, have names of their own."""
    elsewhere = any(
        namespace.settings.get(name) for name in ("location", "mail_path", "mail_driver")
    )
    private = namespace.settings.get("type", "private") == "private"
    return namespace.is_yes("inbox") or (private and not elsewhere)


def _list_obstacles(top: _Section, location: _MailLocation) -> Iterator[str]:
    if location.mail_format in _OTHER_FORMATS:
        yield f"Dovecot keeps its mail as {location.mail_format}, not as Maildir: its folders cannot be watched, {_REMEDY}"
    elif location.layout == "index" or location.subdirectory:
        yield f"Dovecot keeps folders in directories of other names (LAYOUT=index, DIRNAME=): which is Junk cannot be seen, {_REMEDY}"
    elif location.inbox and not f"{_from_home(location.inbox)}/".startswith(
        f"{_from_home(location.path)}/"
    ):
        yield f"Dovecot keeps INBOX apart from other folders ({location.inbox}): moving from one to the other teaches nothing, {_REMEDY}"
    plugins = _plugins(top)
    if plugins & {"zlib", "mail_compress"} and "lz4" in _compression(top):
        yield f"Dovecot compresses with lz4, which cannot be read here: choose zstd or gz, or {_REMEDY}"
    if "mail_crypt" in plugins:
        yield f"Dovecot's plugin mail_crypt is on: encrypted messages cannot be read, {_REMEDY}"


def _from_home(path: str) -> str:
    """Written in one way."""
    return _HOME.sub("~", path.rstrip("/"))


def _compression(top: _Section) -> list[str]:
    """How new mail is compressed: a setting of the plugin's before 2.4, one of its own since."""
    before = [plugin.settings.get("zlib_save", "") for plugin in top.subsections("plugin")]
    return [*before, top.settings.get("mail_compress_write_method", "")]


def _plugins(section: _Section) -> set[str]:
    """Of all protocols: a list of words before 2.4, a section of switches since."""
    named = set(section.settings.get("mail_plugins", "").split())
    for inner in section.sections:
        named |= (
            {name for name in inner.settings if inner.is_yes(name)}
            if inner.kind == "mail_plugins"
            else set()
        )
        named |= _plugins(inner) if inner.kind in ("protocol", "local", "remote") else set()
    return named
