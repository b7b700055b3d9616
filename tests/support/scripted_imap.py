"""An IMAP server with a mailbox in memory that plays providers, and liars.

`Ways` are a provider's: GMAIL and the others below. `ScriptedImap.change` sees each answer before
it is sent, and may break it, keep silent or hang up. All that was asked is in `commands`.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

_ALL = "IMAP4rev1 IDLE ID UIDPLUS MOVE ESEARCH SPECIAL-USE LIST-EXTENDED LIST-STATUS"
_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|\([^)]*\)|[^ ]+')
_USUAL = {"INBOX": "", "Junk": r"\Junk", "Archive": r"\Archive", "Sent": r"\Sent"}
_GMAIL = {"INBOX": "", "[Gmail]/Spam": r"\Junk", "[Gmail]/All Mail": r"\All", "Work": ""}
_EXCHANGE = {"INBOX": "", "Junk Email": "", "Sent Items": "", "Calendar": ""}


Change = Callable[[str, bytes], bytes | Iterator[bytes] | None]


@dataclass(frozen=True)
class Ways:
    """How a server behaves.

    capabilities, before: what it can do; what it says before the login. uses: it tells what folders
    are for. ids: the item that stays the same. labels: folders are. refuses: what it refuses,
    by the beginnings of commands, and in which words. needs_id: else no folder is opened. copyuid:
    "tagged", "untagged" or "zero". chatter: it tells of other messages, too. literals: names of
    folders are.
    """

    capabilities: str = _ALL
    before: str = "IMAP4rev1"
    uses: bool = True
    ids: str = ""
    labels: bool = False
    refuses: tuple[tuple[str, str], ...] = ()
    needs_id: bool = False
    copyuid: str = "untagged"
    chatter: bool = False
    literals: bool = False
    folders: tuple[tuple[str, str], ...] = tuple(_USUAL.items())


GMAIL = Ways(
    *(f"{_ALL} X-GM-EXT-1 CONDSTORE", "IMAP4rev1", True, "X-GM-MSGID", True),
    copyuid="tagged",
    folders=tuple(_GMAIL.items()),
)
ICLOUD = Ways("IMAP4rev1 idle Id UidPlus condstore QRESYNC xlist", "imap4rev1", uses=False)
EXCHANGE = Ways("IMAP4rev1 IDLE UIDPLUS MOVE", uses=False, folders=tuple(_EXCHANGE.items()))
DISABLED = Ways(refuses=(("LOGIN", "LOGIN failed: Basic authentication is disabled."),))
PROTON = Ways(
    "IMAP4rev1 IDLE UIDPLUS ID",
    refuses=(("UID EXPUNGE", "no such command"),),
    copyuid="zero",
    chatter=True,
)
NETEASE = Ways("IMAP4rev1 ID UIDPLUS", uses=False, needs_id=True)
OBJECTS = Ways(f"{_ALL} OBJECTID", ids="EMAILID")


@dataclass
class Message:
    raw: bytes
    id: int
    came: str


@dataclass
class Folder:
    use: str
    uidvalidity: int = 1
    messages: dict[int, Message] = field(default_factory=dict)
    flags: dict[int, set[str]] = field(default_factory=dict)
    next: int = 1

    def put(self, message: Message, flags: set[str]) -> int:
        self.messages[self.next], self.flags[self.next] = message, flags
        self.next += 1
        return self.next - 1

    def status(self) -> str:
        unseen = sum(r"\Seen" not in each for each in self.flags.values())
        return (
            f"UIDVALIDITY {self.uidvalidity} UIDNEXT {self.next} "
            f"MESSAGES {len(self.messages)} UNSEEN {unseen} HIGHESTMODSEQ 1"
        )


class ScriptedImap:
    def __init__(self, ways: Ways, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.ways, self.port = ways, int(listening.getsockname()[1])
        self.folders = {name: Folder(use) for name, use in ways.folders}
        self.commands: list[str] = []
        self.logins = self.open = self.most = 0
        self.change: Change = lambda command, answer: answer
        self.lock = threading.RLock()
        self._listening, self._tls = listening, tls
        self._ids = count(1)
        self._sockets: list[socket.socket] = []

    def deliver(self, raw: bytes, *names: str, year: int = 2037) -> Message:
        """A message comes, into INBOX if nothing else is said."""
        names = names or (("INBOX", "[Gmail]/All Mail") if self.ways.labels else ("INBOX",))
        message = Message(raw, next(self._ids), f'"01-Jan-{year} 10:00:00 +0000"')
        with self.lock:
            for name in names:
                self.folders[name].put(message, set())
        return message

    def move(self, message: Message, source: str, target: str) -> None:
        """As a mail program does it elsewhere."""
        with self.lock:
            lying = self.folders[source].messages.items()
            uid = next(uid for uid, each in lying if each is message)
            self.take(uid, self.folders[source], self.folders[target])

    def take(self, uid: int, source: Folder, target: Folder) -> int:
        message, flags = source.messages[uid], source.flags[uid]
        is_everywhere = self.ways.labels and target.use == r"\Junk"
        for folder in self.folders.values() if is_everywhere else (source,):
            for number in [n for n, each in folder.messages.items() if each is message]:
                del folder.messages[number], folder.flags[number]
        return target.put(message, flags)

    def lies(self, message: Message) -> list[str]:
        """The folders in which a message is; once for each copy."""
        named = [(name, each) for name, f in self.folders.items() for each in f.messages.values()]
        return [name for name, each in named if each is message]

    def restart(self) -> None:
        """With other UIDs and UIDVALIDITY."""
        with self.lock:
            for folder in self.folders.values():
                lying = [(folder.messages[uid], folder.flags[uid]) for uid in folder.messages]
                folder.uidvalidity, folder.next = folder.uidvalidity + 1, 1
                folder.messages, folder.flags = {}, {}
                for message, flags in reversed(lying):
                    folder.put(message, flags)
        self.hang_up()

    def hang_up(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, ValueError):
            client = self._tls.wrap_socket(client, server_side=True) if self._tls else client
            self._sockets.append(client)
            self.open += 1
            self.most = max(self.most, self.open)
            try:
                with client, client.makefile("rb") as lines:
                    _Session(self, client, lines).run()
            finally:
                self.open -= 1


class _Session:
    def __init__(self, server: ScriptedImap, client: socket.socket, lines) -> None:  # type: ignore[no-untyped-def]
        self.server, self.ways, self.client, self.lines = server, server.ways, client, lines
        self.folder = Folder("")
        self.view: list[int] = []  # what the client was told of the folder
        self.is_known = self.is_named = False

    def run(self) -> None:
        self.say("GREETING", b"* OK ready\r\n")
        while line := self.lines.readline().decode().rstrip("\r\n"):
            tag, verb, *words = _WORDS.findall(line)
            self.server.commands.append(line.partition(" ")[2])
            self.command(tag, f"UID {words.pop(0)}" if verb == "UID" else verb, words)
            if verb == "LOGOUT":
                return

    def say(self, command: str, answer: bytes) -> None:
        changed = self.server.change(command, answer)
        if changed is None:
            self.client.shutdown(socket.SHUT_RDWR)
            raise OSError
        for piece in [changed] if isinstance(changed, bytes) else changed:
            self.client.sendall(piece)

    def command(self, tag: str, verb: str, words: list[str]) -> None:
        whole = " ".join((verb, *words))
        refusal = next((said for word, said in self.ways.refuses if whole.startswith(word)), "")
        if self.ways.needs_id and verb in ("SELECT", "EXAMINE") and not self.is_named:
            refusal = f"{verb} Unsafe Login. Please contact kefu@188.com for help"
        method = getattr(self, "do_" + verb.lower().replace(" ", "_"), None)
        with self.server.lock:
            said = method(words) if method and not refusal else None
            told = self.sync() if verb in ("NOOP", "UID MOVE", "UID EXPUNGE") else b""
        if verb == "IDLE" and not refusal:
            self.idle(tag)
        elif said is None:
            kind = "NO" if refusal else "BAD"
            self.say(verb, f"{tag} {kind} {refusal or 'not known'}\r\n".encode())
        else:
            untagged, tagged = said if isinstance(said, tuple) else (said, b"OK done")
            self.say(verb, untagged + told + f"{tag} ".encode() + tagged + b"\r\n")

    def idle(self, tag: str) -> None:
        self.say("IDLE", b"+ idling\r\n")
        while not select.select([self.client], [], [], 0.02)[0]:
            with self.server.lock:
                told = self.sync()
            if told:
                self.say("TOLD", told)
        if line := self.lines.readline().decode().strip():
            self.server.commands.append(line)
        self.say("DONE", f"{tag} OK done\r\n".encode())

    def sync(self) -> bytes:
        now = list(self.folder.messages)
        numbers = range(len(self.view), 0, -1)
        told = [b"* %d EXPUNGE\r\n" % n for n in numbers if self.view[n - 1] not in now]
        if set(now) - set(self.view):
            told.append(b"* %d EXISTS\r\n" % len(now))
        self.view = now
        return b"".join(told)

    def do_noop(self, words: list[str]) -> bytes:
        return b""

    def do_logout(self, words: list[str]) -> bytes:
        return b"* BYE bye\r\n"

    def do_capability(self, words: list[str]) -> bytes:
        known = self.ways.capabilities if self.is_known else self.ways.before
        return f"* CAPABILITY {known}\r\n".encode()

    def do_login(self, words: list[str]) -> bytes:
        self.server.logins += 1
        self.is_known = True
        return b""

    def do_id(self, words: list[str]) -> bytes:
        self.is_named = True
        return b"* ID NIL\r\n"

    def do_list(self, words: list[str]) -> bytes:
        told = []
        for name, folder in self.server.folders.items():
            use = folder.use if self.ways.uses else ""
            told.append(f'* LIST ({use}) "/" '.encode() + self.name(name) + b"\r\n")
            told += [self.status(name)] if "(STATUS" in " ".join(words) else []
        return b"".join(told)

    def do_status(self, words: list[str]) -> bytes | None:
        name = _unquoted(words[0])
        return self.status(name) if name in self.server.folders else None

    def status(self, name: str) -> bytes:
        status = self.server.folders[name].status()
        return b"* STATUS %b (%b)\r\n" % (self.name(name), status.encode())

    def name(self, name: str) -> bytes:
        if self.ways.literals:
            return b"{%d}\r\n%b" % (len(name.encode()), name.encode())
        return '"{}"'.format(re.sub(r'(["\\])', r"\\\1", name)).encode()

    def do_examine(self, words: list[str]) -> bytes | None:
        found = self.server.folders.get(_unquoted(words[0]))
        if found is None:
            return None
        self.folder, self.view = found, []
        lines = (
            "* FLAGS (\\Seen \\Deleted)\r\n* OK [PERMANENTFLAGS (\\Seen \\Deleted \\*)] any\r\n"
            f"* OK [UIDVALIDITY {found.uidvalidity}] is\r\n* OK [UIDNEXT {found.next}] is\r\n"
        )
        return (self.sync() or b"* 0 EXISTS\r\n") + lines.encode()

    do_select = do_examine

    def do_uid_search(self, words: list[str]) -> bytes:
        flags = self.folder.flags
        ways = {"ALL": "", "UNSEEN": r"\Seen", "DELETED": r"\Deleted"}
        flag, kind = ways[words[-1]], words[-1] == "DELETED"
        chosen = [str(uid) for uid, each in flags.items() if not flag or (flag in each) is kind]
        if "RETURN" not in words:
            return f"* SEARCH {' '.join(chosen)}\r\n".encode()
        found = f" ALL {','.join(chosen)}" if chosen else ""
        return f'* ESEARCH (TAG "x") UID{found}\r\n'.encode()

    def do_uid_fetch(self, words: list[str]) -> bytes | None:
        wanted, items = {int(word) for word in words[0].split(",")}, " ".join(words[1:])
        if "X-GUID" in items and self.ways.ids != "X-GUID":
            return None
        told = []
        for number, (uid, message) in enumerate(self.folder.messages.items(), start=1):
            if uid in wanted:
                told.append(b"* %d FETCH (%b)\r\n" % (number, self.fetched(uid, message, items)))
            elif self.ways.chatter:
                told.append(b"* %d FETCH (UID %d FLAGS (\\Seen))\r\n" % (number, uid))
                told.append(b"* %d FETCH (FLAGS ())\r\n" % number)
        return b"".join(told)

    def fetched(self, uid: int, message: Message, items: str) -> bytes:
        said = f"UID {uid} RFC822.SIZE {len(message.raw)} INTERNALDATE {message.came}"
        if self.ways.ids:
            form = "{} ({})" if self.ways.ids == "EMAILID" else "{} {}"
            said += f" {form.format(self.ways.ids, message.id)}"
        if part := re.search(r"BODY\.PEEK\[\]<0\.(\d+)>", items):
            value = message.raw[: int(part[1])]
            return b"%b BODY[]<0> {%d}\r\n%b" % (said.encode(), len(value), value)
        if "HEADER.FIELDS" not in items:
            return said.encode()
        found = re.search(rb"(?im)^message-id:.*\r\n", message.raw)
        value = (found[0] if found else b"") + b"\r\n"
        head = b"%b BODY[HEADER.FIELDS (MESSAGE-ID)] {%d}\r\n%b"
        return head % (said.encode(), len(value), value)

    def do_uid_store(self, words: list[str]) -> bytes:
        self.folder.flags.get(int(words[0]), set()).update(words[2].strip("()").split())
        return b""

    def do_uid_move(self, words: list[str]) -> tuple[bytes, bytes] | None:
        return self.put(words, self.server.take)

    def do_uid_copy(self, words: list[str]) -> tuple[bytes, bytes] | None:
        return self.put(words, lambda uid, source, target: target.put(source.messages[uid], set()))

    def put(self, words: list[str], way: Callable[..., int]) -> tuple[bytes, bytes] | None:
        target, uid = self.server.folders.get(_unquoted(words[1])), int(words[0])
        if target is None or uid not in self.folder.messages:
            return None
        new = way(uid, self.folder, target)
        validity = 0 if self.ways.copyuid == "zero" else target.uidvalidity
        code = f"OK [COPYUID {validity} {uid} {new}] done".encode()
        return (b"", code) if self.ways.copyuid != "untagged" else (b"* %b\r\n" % code, b"OK done")

    def do_uid_expunge(self, words: list[str]) -> bytes:
        if r"\Deleted" in self.folder.flags.get(int(words[0]), ()):
            del self.folder.messages[int(words[0])], self.folder.flags[int(words[0])]
        return b""


def _unquoted(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1]) if word.startswith('"') else word


@contextmanager
def playing(ways: Ways = OBJECTS, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedImap]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = ScriptedImap(ways, listening, tls)
        threading.Thread(target=server.accept, daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            server.hang_up()
