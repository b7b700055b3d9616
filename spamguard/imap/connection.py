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
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple, Self

import imapclient
from imapclient.exceptions import LoginError
from imapclient.response_parser import parse_response
from imapclient.tls import IMAP4_TLS

from spamguard import __version__
from spamguard.config.accounts import Account, AccountTls
from spamguard.errors import SpamguardError
from spamguard.log import printable

MAX_MESSAGE_BYTES = 20 << 20
"""As much of a message as is ever fetched."""
FETCH_UIDS = 500  # messages of one command
_MAX_MESSAGES = 200_000  # of a folder
_MAX_ANSWER_BYTES = 32 << 20  # of one command
_MAX_LINE_BYTES = 8 << 20
_LARGE_BYTES = 1 << 20  # of a literal
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


class Selected(NamedTuple):
    """What a folder is when it is opened."""

    uidvalidity: int
    exists: int
    keywords: frozenset[str]  # that may be set; "\\*" stands for any
    known: frozenset[str]  # flags of messages there, also where none may be set


class FetchedMessage(NamedTuple):
    """What one FETCH answer says, beside its UID: the attributes as text, and its literals."""

    text: bytes
    literals: Sequence[bytes]

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

    def __init__(self, silence: float, *arguments: Any) -> None:
        self._silence = silence
        self.allow()
        super().__init__(*arguments)

    @property
    def sock(self) -> socket.socket:
        return self._sock

    @sock.setter
    def sock(self, sock: socket.socket) -> None:
        # What was sent before TLS begins does not count.
        self._sock, self.unread = sock, bytearray()
        # IMAPClient sends the end of a line apart: it would wait for an acknowledgement.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def allow(self, silences: float = 3.0) -> None:
        """Begin with another command."""
        self._ends_at = time.monotonic() + silences * self._silence
        self._left = _MAX_ANSWER_BYTES

    def send(self, data: bytes) -> None:
        self._sock.settimeout(self._patience())
        super().send(data)  # type: ignore[misc]

    def read(self, size: int) -> bytes | bytearray:
        if size > MAX_MESSAGE_BYTES:
            raise imaplib.IMAP4.abort(f"a literal of {size} bytes")
        while len(self.unread) < size:
            self._fill(size - len(self.unread))
        if len(self.unread) > size or size < _LARGE_BYTES:
            return self._take(size)
        taken, self.unread = self.unread, bytearray()  # several may be as large at once: no copy
        return taken

    def readline(self) -> bytes:
        searched = 0
        while (end := self.unread.find(b"\n", searched)) < 0:
            searched = len(self.unread)
            if searched > _MAX_LINE_BYTES:
                raise imaplib.IMAP4.abort("a line without end")
            self._fill()
        self._left -= 100  # an object for each
        return self._take(end + 1)

    def _fill(self, size: int = 1 << 16) -> None:
        self._sock.settimeout(self._patience())
        piece = self._sock.recv(min(size, 1 << 16))
        if not piece:
            raise imaplib.IMAP4.abort("socket error: EOF")
        self.unread += piece
        self._left -= len(piece)

    def _take(self, size: int) -> bytes:
        with memoryview(self.unread) as view:
            taken = bytes(view[:size])
        del self.unread[:size]
        return taken

    def _patience(self) -> float:
        left = self._ends_at - time.monotonic()
        if self._left < 0 or left <= 0:
            raise imaplib.IMAP4.abort("an answer without end")
        return min(self._silence, left)


class _PlainStream(_BoundedReader, imapclient.imap4.IMAP4WithTimeout):  # type: ignore[misc]
    pass


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
    with _errors(where, lost=True):
        client = _Client(
            account.server,
            account.usual_port,
            ssl=account.tls is AccountTls.TLS,
            ssl_context=_tls_context() if account.tls is AccountTls.TLS else None,
            timeout=silence,
        )
    client._imap.debug = 0  # IMAPClient formats every line for its log
    client.folder_encode = False
    connection = Connection(client, where)
    try:
        with connection._command(lost=True):
            if account.tls is AccountTls.STARTTLS:
                client.starttls(_tls_context())
        with connection._command(refused=True):
            if account.oauth is not None:
                client.oauth2_login(account.user, secret)
            else:
                client.login(account.user, secret)
        connection._begin()
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

    def _begin(self) -> None:
        with self._command():
            # What was said before the login does not count.
            self._client._cached_capabilities = None
            known = self._client._do_capabilites()
            self.capabilities = frozenset(name.decode("ascii", "replace") for name in known)
            self._client._cached_capabilities = known
        if "ID" in self.capabilities:  # some refuse to go on without
            with suppress(ImapError), self._command():
                self._client.id_({"name": "spamguard", "version": __version__})
        if self.closed:
            raise ImapError(f"{self._where}: the server has ended the connection", lost=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye where there is somebody to say it to."""
        client, self.closed = self._client, True
        self._client = None
        if client is not None:
            client._imap.allow(0.1)
            with suppress(Exception):
                if self.is_idle:
                    client.idle_done()
                client.logout()
            with suppress(Exception):
                client.shutdown()

    def fileno(self) -> int:
        """The socket's; -1 once it is closed, which another thread may do at any time."""
        client = self._client
        return -1 if client is None else int(client.socket().fileno())

    # ---- folders

    def list_folders(self) -> list[ListedFolder]:
        """All folders that can be opened, with names in ASCII as they must have."""
        arguments = [b'""', b'"*"']
        if {"SPECIAL-USE", "LIST-EXTENDED"} <= self.capabilities:
            arguments.append(b"RETURN (SPECIAL-USE)")
        with self._command():
            lines = self._client._raw_command_untagged(b"LIST", arguments, uid=False)
            found = self._client._proc_folder_list(lines)
        folders = []
        for flags, delimiter, name in found:
            raw = name.decode("ascii", "ignore") if isinstance(name, bytes) else str(name)
            attributes = {flag.decode("ascii", "replace").lower() for flag in flags}
            known = [use for use in _SPECIAL_USES if use in attributes]
            is_sound = raw.isprintable() and _as_bytes(name) == raw.encode()
            if attributes & {"\\noselect", "\\nonexistent"} or not is_sound:
                continue
            folders.append(ListedFolder(raw, (delimiter or b"").decode("latin-1"), " ".join(known)))
        return folders

    def statuses(self, folders: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Numbers of each folder: they differ if anything has changed there. One that cannot be
        asked has none.
        """
        items = ["UIDVALIDITY", "UIDNEXT", "MESSAGES", "UNSEEN"]
        if "CONDSTORE" in self.capabilities:
            items.append("HIGHESTMODSEQ")
        found: dict[str, tuple[int, ...]] = {}
        if "LIST-STATUS" in self.capabilities:
            arguments = [b'""', b'"*"', f"RETURN (STATUS ({' '.join(items)}))".encode()]
            with self._command():
                lines = self._client._raw_command_untagged(
                    b"LIST", arguments, uid=False, response_name="STATUS"
                )
                for pieces in _whole_lines(lines):
                    name, values = parse_response(pieces)
                    numbers = dict(zip(values[::2], values[1::2], strict=True))
                    found[_as_bytes(name).decode()] = tuple(
                        int(numbers.get(item.encode(), 0)) for item in items
                    )
            return found
        for raw in folders:
            try:
                with self._command():
                    answer = self._client.folder_status(raw, items)
                    found[raw] = tuple(int(answer.get(item.encode(), 0)) for item in items)
            except ImapError as error:
                if error.lost:
                    raise
        return found

    def select(self, raw: str, *, readonly: bool = True) -> Selected:
        """Open a folder, with EXAMINE unless it is to be written."""
        with self._command():
            self.folder = None
            answer = self._client.select_folder(raw, readonly)
            if not 0 < answer.get(b"UIDVALIDITY", 0) < 1 << 32:
                raise ImapError(f"{self._where}: {raw}: no UIDVALIDITY")
            self.folder = raw, not readonly
        self.changed = False
        return Selected(
            answer[b"UIDVALIDITY"],
            answer.get(b"EXISTS", 0),
            *(
                frozenset(flag.decode("ascii", "replace").lower() for flag in answer.get(name, ()))
                for name in (b"PERMANENTFLAGS", b"FLAGS")
            ),
        )

    # ---- messages of the open folder

    def search(self, criterion: str) -> list[int]:
        """The UIDs of messages in the open folder: ALL, UNSEEN, DELETED."""
        words = [criterion.encode()]
        with self._command():
            if "ESEARCH" in self.capabilities:
                (line,) = self._client._raw_command_untagged(
                    b"SEARCH", [b"RETURN (ALL)", *words], response_name="ESEARCH"
                )
                found = _expand_set(line or b"")
            else:
                lines = self._client._raw_command_untagged(b"SEARCH", words)
                numbers = b" ".join(line for line in lines if line)
                found = sorted({int(word) for word in numbers.partition(b"(")[0].split()})
            if found and not 0 < found[0] <= found[-1] < 1 << 32:
                raise ValueError("no UID")
            if len(found) > _MAX_MESSAGES:
                raise ImapError(f"{self._where}: more messages than a folder may have")
            return found

    def fetch(self, uids: Collection[int], items: str) -> dict[int, FetchedMessage]:
        """What the server says about messages; answers about others are left out."""
        with self._command():
            kind, lines = self._client._imap.uid("FETCH", ",".join(map(str, uids)), f"({items})")
            self._client._checkok("fetch", kind, lines)
        wanted, found = set(uids), dict[int, FetchedMessage]()
        for message in _fetched_messages(lines):
            uid = message.attribute(b"UID")
            if uid.isdigit() and int(uid) in wanted:
                before = found.get(int(uid), FetchedMessage(b"", ()))
                found[int(uid)] = FetchedMessage(
                    before.text + message.text, [*before.literals, *message.literals]
                )
        return found

    def fetch_message(self, uid: int) -> bytes | None:
        """The beginning of a message; None: it is not there any more."""
        items = f"BODY.PEEK[]<0.{MAX_MESSAGE_BYTES}>"
        answer = self.fetch([uid], items).get(uid)
        return max(answer.literals, key=len) if answer and answer.literals else None

    def find_id_item(self) -> str:
        """The item by which the server tells what stays the same wherever a message is moved; ""
        where it has none. A folder is open.
        """
        if "X-GM-EXT-1" in self.capabilities:
            return "X-GM-MSGID"
        if "OBJECTID" in self.capabilities:
            return "EMAILID"
        if self._stores_ids is None:
            try:  # Dovecot does not announce it
                self.fetch([1], "X-GUID")
                self._stores_ids = True
            except ImapError as error:
                if error.lost:
                    raise
                self._stores_ids = False
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
        self.add_flags(uid, ["\\Deleted"])
        try:
            with self._command():
                self._client.uid_expunge([uid])
        except ImapError:  # Proton announces it, and refuses
            self.capabilities -= {"UIDPLUS"}
            raise

    def add_flags(self, uid: int, flags: Iterable[str]) -> None:
        with self._command():
            self._client.add_flags([uid], [flag.encode() for flag in flags], silent=True)

    # ---- waiting

    def idle(self) -> bool:
        """Let the server tell of changes; whether it has told of some already."""
        if "IDLE" not in self.capabilities:
            return False
        with self._command():
            imap = self._client._imap
            tag = self._client._idle_tag = imap._command("IDLE")
            while imap._get_response() is not None:  # IMAPClient bears nothing before the "+"
                if imap.tagged_commands[tag]:
                    self.capabilities -= {"IDLE"}
                    return False
            self.is_idle = True
        return self.changed or self._has_pending()

    def end_idle(self) -> None:
        """End it, and read what was told: `changed` says whether that is anything."""
        if self.is_idle:
            with self._command():
                self.is_idle = False
                _, told = self._client.idle_done()
                self.changed |= any(_tells_change(each) for each in told)

    def noop(self) -> None:
        with self._command():
            self._client.noop()

    def _has_pending(self) -> bool:
        """Whether more has been read from the socket than was looked at: no poll tells of that."""
        imap = self._client._imap
        return bool(imap.unread or (isinstance(imap.sock, ssl.SSLSocket) and imap.sock.pending()))

    @contextmanager
    def _command(self, *, refused: bool = False, lost: bool = False) -> Iterator[None]:
        """Do one command, and take note of what the server tells by the way."""
        if self._client is None:
            raise ImapError(f"{self._where}: the connection has ended", lost=True)
        client = self._client
        client._imap.allow()
        try:
            with _errors(self._where, refused=refused, lost=lost):
                yield
                told = client._imap.untagged_responses
                if "THROTTLED" in told:  # with OK, and half an answer or none
                    raise ImapError(f"{self._where}: asks for a pause (THROTTLED)", lost=True)
                self.changed |= not told.keys().isdisjoint(("EXISTS", "EXPUNGE", "VANISHED"))
        except ImapError as error:
            if error.lost:
                self.close_at_once()
            raise
        finally:
            client._imap.untagged_responses = {}  # the pool would only grow

    def close_at_once(self) -> None:
        """End the connection without a word."""
        client, self._client, self.closed = self._client, None, True
        if client is not None:
            with suppress(Exception):
                client.shutdown()


# ---- errors


@contextmanager
def _errors(where: str, *, refused: bool = False, lost: bool = False) -> Iterator[None]:
    """Say in one line what went wrong. Only a plain NO or BAD leaves the connection usable."""
    try:
        yield
    except ImapError:
        raise
    except LoginError as error:
        text = _plain(error)
        if isinstance(error.__context__, imaplib.IMAP4.abort):  # IMAPClient makes a refusal of that
            raise ImapError(f"{where}: the connection was lost: {text}", lost=True) from error
        passes = "[UNAVAILABLE]" in text  # it cannot know now (RFC 5530)
        text = f"{where} refuses the login: {text}"
        raise ImapError(text, refused=not passes, lost=passes) from error
    except imaplib.IMAP4.readonly as error:
        raise ImapError(f"{where}: {_plain(error)}") from error
    except imaplib.IMAP4.abort as error:
        raise ImapError(f"{where}: the connection was lost: {_plain(error)}", lost=True) from error
    except imaplib.IMAP4.error as error:
        is_plain = " failed: " in str(error) or " command error: " in str(error)
        verb = "refuses the login" if refused else "says"
        raise ImapError(
            f"{where} {verb}: {_plain(error)}", refused=refused, lost=lost or not is_plain
        ) from error
    except ssl.SSLCertVerificationError as error:
        text = f"{where}: its certificate is not valid: {error.verify_message}"
        raise ImapError(text, lost=True) from error
    except OSError as error:
        text = f"{where}: {error.strerror or error or 'no answer'}"
        raise ImapError(text, lost=True) from error
    except Exception as error:
        # An answer that makes no sense breaks the parser in one of many ways.
        text = f"{where}: an answer that makes no sense: {_plain(error)}"
        raise ImapError(text, lost=True) from error


def _plain(error: Exception) -> str:
    text = re.sub(r"^b(['\"])(.*)\1$", r"\2", str(error).strip(), flags=re.DOTALL)
    text = printable(text[:_MAX_TEXT], lambda _: "?").strip()
    return text or "no reason is given"


# ---- answers

_SPECIAL_USES = (
    *("\\junk", "\\trash", "\\archive"),
    *("\\all", "\\sent", "\\drafts", "\\flagged", "\\important"),
)


def _as_bytes(name: object) -> bytes:
    return name if isinstance(name, bytes) else str(name).encode("utf-8", "replace")


def _tells_change(told: object) -> bool:
    """Whether a line of IDLE is about messages; "* OK Still here" is not."""
    words = told if isinstance(told, tuple) else ()
    return any(word in (b"EXISTS", b"EXPUNGE", b"FETCH", b"VANISHED") for word in words[:2])


def _expand_set(line: bytes) -> list[int]:
    """The UIDs of an ESEARCH answer: (TAG "a") UID ALL 2:4,7; of too many, one more than enough."""
    found = re.search(rb"\bALL ([0-9:,]+)", line)
    ranges, count = [], 0
    for piece in found[1].split(b",") if found else ():
        first, _, last = piece.partition(b":")
        low, high = sorted((int(first), int(last or first)))
        ranges.append(range(low, high + 1))
        count += len(ranges[-1])
        if count > _MAX_MESSAGES:
            break
    return sorted(set(islice(chain.from_iterable(ranges), _MAX_MESSAGES + 1)))


def _whole_lines(lines: Iterable[Any]) -> Iterator[list[Any]]:
    """The answers, from pieces as `imaplib` has them: a text before each literal, and the rest."""
    pieces = []
    for piece in lines:
        pieces += [] if piece is None else [piece]
        if pieces and not isinstance(piece, tuple):
            yield pieces
            pieces = []


def _fetched_messages(lines: Iterable[Any]) -> Iterator[FetchedMessage]:
    for pieces in _whole_lines(lines):
        literals = [each[1] for each in pieces[:-1]]
        yield FetchedMessage(b"".join([*(each[0] for each in pieces[:-1]), pieces[-1]]), literals)


def batches(uids: Sequence[int]) -> Iterator[list[int]]:
    """UIDs in portions for one command each, the newest first."""
    rest = iter(sorted(uids, reverse=True))
    while batch := list(islice(rest, FETCH_UIDS)):
        yield batch
