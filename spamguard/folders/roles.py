"""Folders: their names, what each is for, and what the entries of `watch:` say about them.

The role of a folder comes from the configuration, else from Dovecot's special uses (RFC 6154), else
from its name, in the languages of the usual mail programs (`names.toml`). A folder about which
nothing is known is neutral: users keep mail there, and where it was before stays known. Folders of
what users write themselves (sent mail, drafts) are ignored: a slip of the hand must never teach
such mail as spam.

Special uses are not in a Maildir: `read_dovecot` asks `doveconf -n`, whose output no library reads.
"""

from __future__ import annotations

import logging
import re
import subprocess
import tomllib
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain, islice
from typing import NamedTuple

from spamguard.config.options import Protocol, Settings, Watch
from spamguard.errors import SpamguardError
from spamguard.folders.broker import Mailboxes
from spamguard.folders.maildir import Folder, Mailbox

_log = logging.getLogger("spamguard.folders")

_MAX_CACHED_ROLES = 50_000  # folders: users make and rename as many as they like


INBOX_NAME = ("INBOX",)
_SHIFT_SEQUENCE = re.compile(r"&([A-Za-z0-9+,]*)-")
_NEEDS_SHIFT = re.compile(r"[^ -~\udc80-\udcff]+")  # bytes that are no UTF-8 stay


def decode_utf7(text: str) -> str:
    """From IMAP's modified UTF-7 (RFC 3501, section 5.1.3). Other text stays as it is.

    >>> decode_utf7("Entw&APw-rfe")
    'Entwürfe'
    """

    def decode(match: re.Match[str]) -> str:
        padded = match[1] + "=" * (-len(match[1]) % 4)
        return b64decode(padded, b"+,", validate=True).decode("utf-16-be") or "&"

    try:
        decoded = _SHIFT_SEQUENCE.sub(decode, text)
        return decoded if encode_utf7(decoded) == text else text
    except ValueError:
        return text


def encode_utf7(text: str) -> str:
    def encode(match: re.Match[str]) -> str:
        coded = b64encode(match[0].encode("utf-16-be", "surrogatepass"), b"+,")
        return f"&{coded.rstrip(b'=').decode()}-"

    return _NEEDS_SHIFT.sub(encode, text.replace("&", "&-"))


def folder_parts(directory: str) -> tuple[str, ...] | None:
    """The name of a folder, from the top; None: no folder can be in this directory.

    A leading dot means the Maildir++ layout, none the nested one (LAYOUT=fs).

    >>> folder_parts(".Junk.Old") == folder_parts("Junk/Old") == ("Junk", "Old")
    True
    >>> folder_parts("")
    ('INBOX',)
    """
    if not directory:
        return INBOX_NAME
    pieces = directory[1:].split(".") if directory.startswith(".") else directory.split("/")
    if "" in pieces or any(piece.startswith(".") or "/" in piece for piece in pieces):
        return None
    return tuple(map(decode_utf7, pieces))


def display_folder(directory: str) -> str:
    """A folder's name as mail programs show it; bytes that are no UTF-8 are escaped."""
    name = "/".join(folder_parts(directory) or (directory,))
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def describe_folder(folder: Folder) -> str:
    return f"{folder.mailbox.path} {display_folder(folder.directory)}"


def is_maildir(mailboxes: Mailboxes, mailbox: Mailbox, *, if_unreadable: bool) -> bool:
    """Whether what a pattern fits is a Maildir, and not a directory of Maildirs."""
    try:
        folders = mailboxes.list_folders(mailbox)
        return any(folder_parts(folder.directory) == INBOX_NAME for folder in folders)
    except OSError:
        return if_unreadable


# ---- roles by name


class FolderKind(StrEnum):
    """What a folder is for."""

    CLASS = "class"  # users put messages of one class there
    NEUTRAL = "neutral"  # watched, says nothing about a message
    TRASH = "trash"  # watched, says nothing about a message
    IGNORED = "ignored"  # not watched


class Role(NamedTuple):
    """The role of a folder. label: the class, if kind is CLASS."""

    kind: FolderKind
    label: str = ""


HAM_ROLE = Role(FolderKind.CLASS, "ham")
SPAM_ROLE = Role(FolderKind.CLASS, "spam")
TRASH_ROLE = Role(FolderKind.TRASH)
NEUTRAL_ROLE = Role(FolderKind.NEUTRAL)
IGNORED_ROLE = Role(FolderKind.IGNORED)

SPECIAL_USES = {  # RFC 6154, RFC 8457
    "\\junk": SPAM_ROLE,
    "\\trash": TRASH_ROLE,
    "\\archive": HAM_ROLE,
    **dict.fromkeys(("\\sent", "\\drafts", "\\all", "\\flagged", "\\important"), IGNORED_ROLE),
}

_SECTION_ROLES = {  # of the tables of names
    "ignored": IGNORED_ROLE,
    "junk": SPAM_ROLE,
    "trash": TRASH_ROLE,
    "archive": HAM_ROLE,
}

RoleLookup = Callable[[str], Role]  # by directory


def parse_role(text: str) -> Role:
    """A role of the configuration: neutral, trash, ignored, or the name of a class."""
    if text in (FolderKind.NEUTRAL, FolderKind.TRASH, FolderKind.IGNORED):
        return Role(FolderKind(text))
    return Role(FolderKind.CLASS, text)


def find_role(
    name: tuple[str, ...],
    configured: Mapping[str, Role] = {},
    special: Mapping[tuple[str, ...], str] = {},
) -> Role:
    """The role of a folder by its name, from the top.

    A folder about which nothing is known has the role of the nearest folder above it about which
    something is, except INBOX. It is not ham if a name below that one usually says something else:
    Archive/Spam is neutral. If the whole name says nothing, dots part levels too: OfflineIMAP makes
    directories such as INBOX.Spam.

    Parameters
    ----------
    configured
        By pattern; the first that fits counts. "/" parts levels, `*` stands for anything.
    special
        By name, as Dovecot has it.
    """
    role = _nearest_role(name, configured, special)
    if role is None and len(name) == 1 and "" not in (dotted := tuple(name[0].split("."))):
        role = _nearest_role(dotted, configured, special)
    return role or NEUTRAL_ROLE


def _nearest_role(
    name: tuple[str, ...], configured: Mapping[str, Role], special: Mapping[tuple[str, ...], str]
) -> Role | None:
    name = _strip_inbox(name)
    uses = {_fold_name(_strip_inbox(folder)): use for folder, use in special.items()}
    for length in range(len(name), 0, -1):
        folded = _fold_name(name[:length])
        special_uses = uses.get(folded, "").lower().split()
        role = next(
            chain(
                (to for pattern, to in configured.items() if _fits(pattern, folded)),
                (SPECIAL_USES[use] for use in special_uses if use in SPECIAL_USES),
            ),
            _usual_roles().get(folded),
        )
        if role is not None and (length == len(name) or name[:length] != INBOX_NAME):
            is_other = any(
                _usual_roles().get(_fold_name((part,)), HAM_ROLE) != HAM_ROLE
                for part in name[length:]
            )
            return NEUTRAL_ROLE if role == HAM_ROLE and is_other else role
    return None


@cache
def _usual_roles() -> dict[str, Role]:
    tables = tomllib.loads(files("spamguard.folders").joinpath("names.toml").read_text("utf-8"))
    roles = {
        _fold_name((name,)): role
        for section, role in _SECTION_ROLES.items()
        for names in tables[section].values()
        for name in names.split(", ")
    }
    views = {_fold_name((name,)): IGNORED_ROLE for name in tables["gmail_views"].split(", ")}
    in_gmail = {
        f"{above}/{name}": role
        for above in ("[gmail]", "[google mail]")
        for name, role in (roles | views).items()
    }
    return roles | in_gmail | {_fold_name(INBOX_NAME): HAM_ROLE}


def _fits(pattern: str, folded: str) -> bool:
    parts = _fold_name(_strip_inbox(tuple(pattern.split("/")))).split("*")
    return re.fullmatch(".*".join(map(re.escape, parts)), folded, re.DOTALL) is not None


def _strip_inbox(name: tuple[str, ...]) -> tuple[str, ...]:
    """A name without the INBOX that some servers put above all other folders."""
    return name[1:] if len(name) > 1 and name[0].casefold() == "inbox" else name


def _fold_name(name: tuple[str, ...]) -> str:
    """One line without differences of case, width, composition, hyphens and white space."""
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", "/".join(name)).casefold())
    return " ".join(re.sub(r"[-‐‑–—_]", "-", text).split())


# ---- entries of `watch:`


def role_lookup(watch: Watch, special: Mapping[tuple[str, ...], str]) -> RoleLookup:
    configured = {pattern: parse_role(text) for pattern, text in watch.folders}

    @lru_cache(_MAX_CACHED_ROLES)
    def role(directory: str) -> Role:
        name = folder_parts(directory)
        return find_role(name, configured, special) if name else IGNORED_ROLE

    return role


def is_next_hop(watch: Watch, settings: Settings) -> bool:
    hops = [listener.next_hop.to for listener in settings.listeners]
    return any(hop.protocol is Protocol.MAILDIR and str(hop.path) == watch.maildir for hop in hops)


def find_unmatched_watches(settings: Settings, mailboxes: Iterable[Mailbox]) -> tuple[str, ...]:
    """A warning for each pattern that no mailbox fits, except Maildirs that our mail makes."""
    matched = {mailbox.watch for mailbox in mailboxes}
    return tuple(
        f"watch: nothing fits {watch.maildir} yet: "
        "until something does, moving mail there teaches nothing"
        for number, watch in enumerate(settings.watch)
        if number not in matched and not is_next_hop(watch, settings)
    )


# ---- what Dovecot says about folders

_TIMEOUT = 10.0  # seconds that doveconf may take
_MAX_OUTPUT = 4 << 20  # characters
_MAX_MAILBOXES = 1000  # that are checked for a Maildir
_SECTION = re.compile(r"(\S+)(?:\s+(\S.*?))?\s*\{")
_SETTING = re.compile(r"(\S+)\s*=\s*(.*)")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HOME = re.compile(r"^(%h|%\{home\})(?=/|$)")
_LZ4 = re.compile(r"^\s*(?:zlib_save|mail_compress_write_method)\s*=\s*lz4\b", re.MULTILINE)
_CRYPT = re.compile(
    r"^\s*(?:mail_plugins\s*=.*\bmail_crypt\b|mail_crypt\s*=\s*yes\b)", re.MULTILINE
)
_LOCATION_SETTINGS = (
    "mail_driver",
    "mail_path",
    "mail_inbox_path",
    "mailbox_list_layout",
    "mailbox_directory_name",
)
_UNKNOWN_WARNING = "doveconf %s, so Dovecot's special uses of folders are not known: %s"
_REMEDY = "let Dovecot tell by IMAPSieve"
_OTHER_FORMATS = ("mdbox", "sdbox", "dbox", "mbox", "obox", "imapc", "pop3c", "cydir")


class DovecotSettings(NamedTuple):
    """What matters for watching. special_uses: by name, without the namespace's prefix."""

    mail_format: str = ""
    special_uses: Mapping[tuple[str, ...], str] = {}
    obstacles: tuple[str, ...] = ()  # what stands in the way of watching, one line each


@dataclass
class _Section:
    kind: str = ""
    name: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    sections: list[_Section] = field(default_factory=list)

    def subsections(self, kind: str) -> Iterator[_Section]:
        return (section for section in self.sections if section.kind == kind)

    @property
    def is_inbox(self) -> bool:
        return self.settings.get("inbox", "").lower() in ("yes", "y", "true", "1")


def read_dovecot() -> DovecotSettings:
    command = ["doveconf", "-n"]
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT
        )
        return parse_dovecot(done.stdout.decode(errors="surrogateescape"))
    except FileNotFoundError:
        _log.info(
            "there is no doveconf: the roles of folders come from the configuration and "
            "from their names"
        )
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.decode(errors="replace").split())
        _log.warning(_UNKNOWN_WARNING, "failed", reason[:500])
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning(_UNKNOWN_WARNING, "cannot be asked", error)
    return DovecotSettings()


def find_obstacles(
    dovecot: DovecotSettings, settings: Settings, mailboxes: Mailboxes
) -> tuple[str, ...]:
    """The obstacles that matter for what is watched: none if Dovecot has no Maildirs, because
    watched Maildirs are not Dovecot's then.
    """
    if dovecot.mail_format not in _OTHER_FORMATS:
        return dovecot.obstacles
    if all(is_next_hop(watch, settings) for watch in settings.watch):
        return ()  # the Maildir may come yet, with the first mail
    with suppress(SpamguardError, OSError):  # the watcher reports them
        checked = islice(mailboxes.find_mailboxes(), _MAX_MAILBOXES)
        if any(is_maildir(mailboxes, mailbox, if_unreadable=True) for mailbox in checked):
            return ()
    return dovecot.obstacles


def parse_dovecot(text: str) -> DovecotSettings:
    """What `doveconf -n` of Dovecot 2.3 or 2.4 writes. Lines that make no sense are skipped.

    >>> parse_dovecot("mail_location = maildir:~/Maildir").mail_format
    'maildir'
    """
    text = text[:_MAX_OUTPUT]
    top = _parse_sections(text)
    # The settings of Dovecot 2.4, or those of 2.3: `maildir:PATH:LAYOUT=fs`.
    namespaces = list(top.subsections("namespace"))
    main = next((each for each in namespaces if each.is_inbox), _Section()).settings
    settings = top.settings | {name: value for name, value in main.items() if value}
    if "mail_driver" in settings or "mail_path" in settings:
        values = [settings.get(name, "") for name in _LOCATION_SETTINGS]
    else:
        location = settings.get("location") or settings.get("mail_location", "")
        driver, path, *fields = (*location.split(":"), "")
        options = dict(field.partition("=")[::2] for field in fields)
        values = [driver, path, *(options.get(n, "") for n in ("INBOX", "LAYOUT", "DIRNAME"))]
    mail_format, path, inbox, layout, directory_name = values
    mail_format, layout = mail_format.lower(), layout.lower()

    separator = main.get("separator") or ("/" if layout == "fs" else ".")
    uses = {}
    for namespace in namespaces:
        settings = namespace.settings
        # Folders of other users, and those that lie elsewhere, have names of their own.
        is_elsewhere = any(settings.get(name) for name in ("location", "mail_path", "mail_driver"))
        is_private = settings.get("type", "private") == "private"
        if not namespace.is_inbox and (is_elsewhere or not is_private):
            continue
        prefix = settings.get("prefix", "")
        for mailbox in namespace.subsections("mailbox"):
            name = mailbox.settings.get("name", "") or mailbox.name
            name = name.removeprefix(prefix) or name
            if use := mailbox.settings.get("special_use", ""):
                uses[tuple(name.split(settings.get("separator", "") or separator))] = use

    obstacles = []
    if mail_format in _OTHER_FORMATS:
        obstacles.append(
            f"Dovecot keeps its mail as {mail_format}, not as Maildir: "
            f"its folders cannot be watched, {_REMEDY}"
        )
    elif layout == "index" or directory_name:
        obstacles.append(
            "Dovecot keeps folders in directories of other names (LAYOUT=index, DIRNAME=): "
            f"which is Junk cannot be seen, {_REMEDY}"
        )
    elif inbox and not _fold_home(inbox).startswith(_fold_home(path)):
        obstacles.append(
            f"Dovecot keeps INBOX apart from other folders ({inbox}): "
            f"moving from one to the other teaches nothing, {_REMEDY}"
        )
    if _LZ4.search(text):
        obstacles.append(
            "Dovecot compresses with lz4, which cannot be read here: "
            f"choose zstd or gz, or {_REMEDY}"
        )
    if _CRYPT.search(text):
        obstacles.append(
            f"Dovecot's plugin mail_crypt is on: encrypted messages cannot be read, {_REMEDY}"
        )
    return DovecotSettings(mail_format, uses, tuple(obstacles))


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


def _fold_home(path: str) -> str:
    return _HOME.sub("~", path.rstrip("/")) + "/"
