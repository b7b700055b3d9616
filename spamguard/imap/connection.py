"""A connection to an IMAP server that has logged in, and the few commands that we use.

IMAPClient does the protocol. Over it stand bounds (a server may be hostile: no line, literal,
answer or silence is without end), one kind of error, and answers of our own. Messages are named by
UIDs, never by sequence numbers; bodies are fetched by PEEK. EXPUNGE without UIDs, CLOSE, APPEND and
what makes or renames folders do not stand here, so nobody can call them.

Any error but a plain refusal ends the connection: what else the server has sent cannot be told
apart from the next answer.
"""

from __future__ import annotations

import imaplib
import logging
import re
import socket
import ssl
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import imapclient
from imapclient.exceptions import LoginError
from imapclient.response_parser import parse_response
from imapclient.tls import IMAP4_TLS

from spamguard import __version__
from spamguard.config.accounts import Account, AccountTls
from spamguard.errors import SpamguardError, error_text
from spamguard.folders.roles import SPECIAL_USES
from spamguard.imap.bodies import PIECE_BYTES, Body
from spamguard.log import printable

MAX_MESSAGE_BYTES = 20 << 20
"""As much of a message as is ever fetched."""
_MAX_MESSAGES = 200_000  # of a folder
_MAX_ANSWER_BYTES = 32 << 20  # of one command
_MAX_LINE_BYTES = 8 << 20
SILENCE_SECONDS = 45.0
"""Between two pieces of an answer; all of it may take three times as long."""
_MAX_TEXT = 300  # characters of what a server says
logging.getLogger("imapclient").setLevel(logging.WARNING)  # it tells of every connection


class ImapError(SpamguardError):
    """What a server refuses, or that it cannot be spoken to; in its own words where it has any.

    Attributes
    ----------
    refused
        It is the login that was refused.
    lost
        There is no connection, or it has ended.
    """

    def __init__(self, text: str, *, refused: bool = False, lost: bool = False) -> None:
        super().__init__(text)
        self.refused, self.lost = refused, lost


class ListedFolder(NamedTuple):
    """A folder as the server lists it."""

    raw: str  # its name there, in modified UTF-7
    delimiter: str  # "" for none
    use: str = ""  # its special use (RFC 6154) in lower case, such as \\junk
    status: str = ""  # as of `Connection.status`; "": it was not said


class Selected(NamedTuple):
    """What a folder is when it is opened."""

    uidvalidity: int
    exists: int
    keywords: frozenset[str]  # that may be set; "\\*" stands for any
    known: frozenset[str]  # flags of messages there, also where none may be set


class FetchedMessage(NamedTuple):
    """What FETCH answers say of a message: the attributes as text, and its longest literal."""

    text: bytes = b""
    literal: bytes = b""

    def attribute(self, name: bytes) -> bytes:
        """A value that is a number, an atom or a quoted string, in brackets or not, or b""."""
        found = re.search(
            rb'[( ]%b \(?("[^"]*"|[^ ()"]+)' % re.escape(name), self.text, re.IGNORECASE
        )
        return found[1] if found else b""


# ---- bounds


class _BoundedReader:
    """Mixed into the classes of `imaplib`: what a server may make us read for one command.

    It reads the socket itself: a buffered file would wait for the rest of a line without end, and
    what lies in its buffer cannot be seen.
    """

    sock: socket.socket

    def __init__(self, silence: float, *arguments: Any) -> None:
        self._silence, self.unread = silence, bytearray()
        self.allow()
        super().__init__(*arguments)

    def allow(self) -> None:
        """Begin with another command."""
        self._ends_at, self._left = time.monotonic() + 3 * self._silence, _MAX_ANSWER_BYTES

    def send(self, data: bytes) -> None:
        self._set_timeout()
        super().send(data)  # type: ignore[misc]

    def read(self, size: int) -> bytes:
        if size > PIECE_BYTES:
            raise imaplib.IMAP4.abort(f"a literal of {size} bytes")
        while len(self.unread) < size:
            self._fill()
        return self._take(size)

    def readline(self) -> bytes:
        searched = 0
        while (end := self.unread.find(b"\n", searched)) < 0:
            searched = len(self.unread)
            if searched > _MAX_LINE_BYTES:
                raise imaplib.IMAP4.abort("a line without end")
            self._fill()
        line = self._take(end + 1)
        self._left -= 100 + 40 * line.count(b" ")  # objects that are made of it
        return line

    def _fill(self) -> None:
        self._set_timeout()
        piece = self.sock.recv(1 << 16)
        if not piece:
            raise imaplib.IMAP4.abort("socket error: EOF")
        self.unread += piece
        self._left -= len(piece)

    def _take(self, size: int) -> bytes:
        taken = bytes(memoryview(self.unread)[:size])
        del self.unread[:size]
        return taken

    def _set_timeout(self) -> None:
        left = self._ends_at - time.monotonic()
        if self._left < 0 or left <= 0:
            raise imaplib.IMAP4.abort("an answer without end")
        self.sock.settimeout(min(self._silence, left))


class _PlainStream(_BoundedReader, imapclient.imap4.IMAP4WithTimeout):  # type: ignore[misc]
    def _get_capabilities(self) -> None:  # imaplib's: the first that it asks once TLS has begun
        if self._tls_established:  # what was sent before that does not count
            self.unread.clear()
        super()._get_capabilities()


class _TlsStream(_BoundedReader, IMAP4_TLS):  # type: ignore[misc]
    pass


class _Client(imapclient.IMAPClient):  # type: ignore[misc]
    def _create_IMAP4(self) -> Any:  # noqa: N802  IMAPClient's
        silence = self._timeout.read
        if self.ssl:
            return _TlsStream(silence, self.host, self.port, self.ssl_context, silence)
        return _PlainStream(silence, self.host, self.port, silence)


@cache
def _tls_context() -> ssl.SSLContext:  # one for all: each has its own copy of the authorities
    return ssl.create_default_context()


# ---- the connection


def connect(account: Account, silence: float = SILENCE_SECONDS) -> Connection:
    """Connect and log in. ImapError, SecretError."""
    secret = account.read_secret()
    where = f"{account.server}:{account.usual_port}"
    is_tls = account.tls is AccountTls.TLS
    context = _tls_context() if is_tls else None
    with _errors(where):
        client = _Client(
            account.server, account.usual_port, ssl=is_tls, ssl_context=context, timeout=silence
        )
        # IMAPClient sends the end of a line apart: it would wait for an acknowledgement.
        client.socket().setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client._imap.debug = 0  # IMAPClient formats every line for its log
    client.folder_encode = False
    connection = Connection(client, where)
    try:
        if account.tls is AccountTls.STARTTLS:
            with connection._command():
                client.starttls(_tls_context())
        with connection._command():
            login = client.oauth2_login if account.oauth else client.login
            login(account.user, secret)
        with connection._command():
            client._cached_capabilities = None  # what was said before the login does not count
            known = client.capabilities()
        connection.capabilities = frozenset(name.decode("ascii", "replace") for name in known)
        if "ID" in connection.capabilities:  # some refuse to go on without
            with suppress(ImapError), connection._command():
                client.id_({"name": "spamguard", "version": __version__})
    except BaseException:
        connection.close()
        raise
    return connection


class Connection:
    """A session of one user. Every method may raise ImapError; after a loss it is closed.

    Attributes
    ----------
    capabilities
        In upper case, as they are after the login.
    folder
        The folder that is open: its raw name and whether it may be written; None for none.
    changed
        The server has told of messages that came, went or changed, since this was last cleared.
    """

    def __init__(self, client: Any, where: str) -> None:
        self._client, self._where = client, where
        self.capabilities: frozenset[str] = frozenset()
        self.folder: tuple[str, bool] | None = None
        self.changed = self.closed = self.is_idle = False
        self._stores_ids: bool | None = None  # X-GUID: known once it was asked for
        self._idle_tag = b""

    def close(self) -> None:
        client, self._client, self.closed = self._client, None, True
        if client is not None:
            with suppress(OSError):  # it may have ended before
                client.shutdown()

    def fileno(self) -> int:
        """The socket's; -1 once it is closed, which another thread may do at any time."""
        client = self._client
        return -1 if client is None else int(client.socket().fileno())

    # ---- folders

    def list_folders(self) -> list[ListedFolder]:
        """All folders that can be opened, with names in ASCII as they must have."""
        wanted = ["SPECIAL-USE"] * ({"SPECIAL-USE", "LIST-EXTENDED"} <= self.capabilities)
        if "LIST-STATUS" in self.capabilities:
            wanted.append(f"STATUS ({' '.join(self._numbers)})")
        arguments = [b'""', b'"*"', *([f"RETURN ({' '.join(wanted)})".encode()] * bool(wanted))]
        with self._command() as imap:
            lines = self._client._raw_command_untagged(b"LIST", arguments, uid=False)
            found = self._client._proc_folder_list(lines)
            told = parse_response(imap.untagged_responses.get("STATUS", []))
        statuses, folders = dict(zip(told[::2], told[1::2], strict=True)), []
        for flags, delimiter, name in found:
            raw = name if isinstance(name, str) else name.decode("latin-1")
            attributes = {flag.decode("ascii", "replace").lower() for flag in flags}
            is_usable = attributes.isdisjoint(("\\noselect", "\\nonexistent"))
            if is_usable and raw.isascii() and raw.isprintable():
                use = next((use for use in SPECIAL_USES if use in attributes), "")
                status = str(statuses.get(name, ""))[:_MAX_TEXT]
                folders.append(ListedFolder(raw, (delimiter or b"").decode("latin-1"), use, status))
        return folders

    @property
    def _numbers(self) -> list[str]:
        numbers = ["UIDVALIDITY", "UIDNEXT", "MESSAGES", "UNSEEN"]
        return numbers + ["HIGHESTMODSEQ"] * ("CONDSTORE" in self.capabilities)

    def status(self, raw: str) -> str:
        """Numbers of a folder: they differ if anything has changed there. "": it has none."""
        try:
            with self._command():
                return str(self._client.folder_status(raw, self._numbers))[:_MAX_TEXT]
        except ImapError as error:
            if error.lost:
                raise
            return ""

    def select(self, raw: str, *, readonly: bool = True) -> Selected:
        """Open a folder, with EXAMINE unless it is to be written."""
        with self._command():
            self.folder = None
            answer = self._client.select_folder(raw, readonly)
            if not 0 < answer.get(b"UIDVALIDITY", 0) < 1 << 32:
                raise ImapError(f"{self._where}: {raw}: no UIDVALIDITY")
            self.folder = raw, not readonly
        self.changed = False
        keywords, known = (
            frozenset(flag.decode("ascii", "replace").lower() for flag in answer.get(name, ()))
            for name in (b"PERMANENTFLAGS", b"FLAGS")
        )
        return Selected(answer[b"UIDVALIDITY"], answer.get(b"EXISTS", 0), keywords, known)

    # ---- messages of the open folder

    def search(self, criterion: str) -> list[int]:
        """The UIDs of messages in the open folder: ALL, UNSEEN, DELETED."""
        kind, words = "SEARCH", [criterion.encode()]
        if "ESEARCH" in self.capabilities:
            kind, words = "ESEARCH", [b"RETURN (ALL)", *words]
        with self._command():
            lines = self._client._raw_command_untagged(b"SEARCH", words, kind)
            found = _expand_set(b" ".join(filter(None, lines)))
            if found and not 0 < found[0] <= found[-1] < 1 << 32:
                raise ValueError("no UID")
            if len(found) > _MAX_MESSAGES:
                raise ImapError(f"{self._where}: more messages than a folder may have")
            return found

    def fetch(self, uids: Collection[int], items: str) -> dict[int, FetchedMessage]:
        """What the server says about messages; answers about others are left out."""
        with self._command() as imap:
            kind, lines = imap.uid("FETCH", ",".join(map(str, uids)), f"({items})")
            self._client._checkok("fetch", kind, lines)
        wanted, found = set(uids), dict[int, FetchedMessage]()
        for message in _fetched(lines):
            uid = message.attribute(b"UID")
            if uid.isdigit() and int(uid) in wanted:
                text, literal = found.get(int(uid), FetchedMessage())
                literal = max(literal, message.literal, key=len)
                found[int(uid)] = FetchedMessage(text + message.text, literal)
        return found

    def fetch_message(self, uid: int) -> Body | None:
        """A message, or its beginning; None: it is not there any more."""
        body = Body()
        for start in range(0, MAX_MESSAGE_BYTES, PIECE_BYTES):
            answers = self.fetch([uid], f"BODY.PEEK[]<{start}.{PIECE_BYTES}>")
            answer = answers.get(uid, FetchedMessage())
            said = answer.text.upper()  # beyond the end there is "" or NIL
            if b"BODY[]" not in said or (b" NIL" in said and not start):
                return None
            body.write(answer.literal)
            if len(answer.literal) < PIECE_BYTES:
                break
        return body

    def find_id_item(self) -> str:
        """The item by which the server tells what stays the same wherever a message is moved; ""
        where it has none. A folder is open.
        """
        if "X-GM-EXT-1" in self.capabilities:
            return "X-GM-MSGID"
        if "OBJECTID" in self.capabilities:
            return "EMAILID"
        if self._stores_ids is None:  # Dovecot does not announce it
            self._stores_ids = False
            with suppress(ImapError):  # one that is lost shows by the next command
                self.fetch([1], "X-GUID")
                self._stores_ids = True
        return "X-GUID" if self._stores_ids else ""

    # ---- writing

    @property
    def can_move(self) -> bool:
        """Whether one message can be moved without touching another."""
        return bool(self.capabilities & {"MOVE", "UIDPLUS"})

    def move(self, uid: int, raw: str) -> None:
        """Move a message of the open folder to another one."""
        with self._command():
            if "MOVE" in self.capabilities:
                self._client.move([uid], raw)
                return
            self._client.copy([uid], raw)
        self.remove(uid)

    def remove(self, uid: int) -> None:
        """Remove one message of the open folder, which lies in another one."""
        if "UIDPLUS" not in self.capabilities:
            raise ImapError(f"{self._where}: one message alone cannot be removed")
        self.add_flag(uid, b"\\Deleted")
        try:
            with self._command():
                self._client.uid_expunge([uid])
        except ImapError:  # Proton announces it, and refuses
            self.capabilities -= {"UIDPLUS"}
            raise

    def add_flag(self, uid: int, flag: bytes) -> None:
        with self._command():
            self._client.add_flags([uid], [flag], silent=True)

    # ---- waiting

    def idle(self) -> bool:
        """Let the server tell of changes; whether it has told of some already."""
        if "IDLE" not in self.capabilities:
            return False
        with self._command() as imap:
            self._idle_tag = imap._command("IDLE")
            while imap._get_response() is not None:  # IMAPClient bears nothing before the "+"
                if imap.tagged_commands[self._idle_tag]:
                    self.capabilities -= {"IDLE"}
                    return False
            self.is_idle = True
        # No poll tells of what has been read from the socket and was not looked at.
        return bool(
            self.changed
            or imap.unread
            or (isinstance(imap.sock, ssl.SSLSocket) and imap.sock.pending())
        )

    def hear(self) -> None:
        """End it, or ask: `changed` says whether the server has told of anything."""
        was_idle, self.is_idle = self.is_idle, False
        with self._command() as imap:
            if not was_idle:
                self._client.noop()
                return
            imap.send(b"DONE\r\n")
            imap._command_complete("IDLE", self._idle_tag)
            self.changed |= "FETCH" in imap.untagged_responses

    @contextmanager
    def _command(self) -> Iterator[Any]:
        """Do one command, and take note of what the server tells by the way."""
        if self._client is None:
            raise ImapError(f"{self._where}: the connection has ended", lost=True)
        imap = self._client._imap
        imap.allow()
        try:
            with _errors(self._where):
                yield imap
                told = imap.untagged_responses
                if "THROTTLED" in told:  # with OK, and half an answer or none
                    raise ImapError(f"{self._where}: asks for a pause (THROTTLED)", lost=True)
                self.changed |= not told.keys().isdisjoint(("EXISTS", "EXPUNGE", "VANISHED"))
        except ImapError as error:
            if error.lost:
                self.close()
            raise
        finally:
            imap.untagged_responses = {}  # the pool would only grow


# ---- errors


@contextmanager
def _errors(where: str) -> Iterator[None]:
    """Say in one line what went wrong. Only a plain NO or BAD leaves the connection usable."""
    try:
        yield
    except ImapError:
        raise
    except LoginError as error:
        was_cut = isinstance(error.__context__, imaplib.IMAP4.abort)  # no refusal at all
        passes = was_cut or "[UNAVAILABLE]" in str(error)  # it cannot know now (RFC 5530)
        text = f"{where} refuses the login: {_plain(error)}"
        raise ImapError(text, refused=not passes, lost=passes) from error
    except Exception as error:
        text, is_plain = f"{where}: {_plain(error)}", False
        if isinstance(error, imaplib.IMAP4.abort):
            text = f"{where}: the connection was lost: {_plain(error)}"
        elif isinstance(error, imaplib.IMAP4.error):
            is_plain = " failed: " in text or " command error: " in text
        elif isinstance(error, ssl.SSLCertVerificationError):
            text = f"{where}: its certificate is not valid: {error.verify_message}"
        elif not isinstance(error, OSError):  # the parser breaks in one of many ways
            text = f"{where}: an answer that makes no sense: {_plain(error)}"
        raise ImapError(text, lost=not is_plain) from error


def _plain(error: Exception) -> str:
    text = re.sub(r"^b(['\"])(.*)\1$", r"\2", error_text(error), flags=re.DOTALL)
    return printable(text[:_MAX_TEXT], lambda _: "?").strip() or "no reason is given"


# ---- answers


def _expand_set(answer: bytes) -> list[int]:
    """The UIDs of `(TAG "a") UID ALL 2:4,7` or `2 3 4 (MODSEQ 9)`; of too many, one more."""
    uids = set[int]()
    for piece in re.sub(rb"\(.*?\)|UID|ALL|,", b" ", answer).split():
        first, _, last = piece.partition(b":")
        low, high = sorted((int(first), int(last or first)))
        uids.update(range(low, min(high, low + _MAX_MESSAGES) + 1))
        if len(uids) > _MAX_MESSAGES:
            break
    return sorted(uids)


def _fetched(lines: Iterable[Any]) -> Iterator[FetchedMessage]:
    """From pieces as `imaplib` has them: a text with each literal, and the rest of the line."""
    text = literal = b""
    for piece in lines:
        if isinstance(piece, tuple):
            text, literal = text + piece[0], max(literal, piece[1], key=len)
        elif piece is not None:
            yield FetchedMessage(text + piece, literal)
            text = literal = b""
