"""An IMAP server with a mailbox in memory that plays providers, and liars.

`Ways` are a provider's: GMAIL and the others below. `ScriptedImap.change` sees each answer before
it is sent, and may break it, keep silent or hang up. All that was asked is in `commands`.
"""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_ALL = "IMAP4rev1 IDLE ID UIDPLUS MOVE ESEARCH SPECIAL-USE LIST-EXTENDED"
_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|\([^)]*\)|[^ ]+')
_USUAL = (("INBOX", ""), ("Junk", r"\Junk"), ("Archive", r"\Archive"), ("Sent", r"\Sent"))
_GMAIL = (("INBOX", ""), ("[Gmail]/Spam", r"\Junk"), ("[Gmail]/All Mail", r"\All"), ("Work", ""))
_EXCHANGE = (("INBOX", ""), ("Junk Email", ""), ("Sent Items", ""), ("Calendar", ""))
_KNOWN = ("CAPABILITY", "LOGIN", "ID", "NOOP")
Change = Callable[[str, bytes], bytes | Iterator[bytes] | None]


@dataclass(frozen=True)
class Ways:
    """How a server behaves. Where its id is X-GM-MSGID, folders are labels.

    ids: the item that stays the same. refuses: patterns of commands, and in which words; "unnamed"
    stands before each until it got an ID. chatter: it tells of other messages, too, and COPYUID has
    no UIDVALIDITY. literals: names of folders are.
    """

    capabilities: str = _ALL
    ids: str = ""
    folders: tuple[tuple[str, str], ...] = _USUAL
    refuses: tuple[tuple[str, str], ...] = ()
    chatter: bool = False
    literals: bool = False


GMAIL = Ways(f"{_ALL} X-GM-EXT-1 CONDSTORE", "X-GM-MSGID", _GMAIL)
ICLOUD = Ways("IMAP4rev1 idle Id UidPlus condstore QRESYNC xlist")
EXCHANGE = Ways("IMAP4rev1 IDLE UIDPLUS MOVE", folders=_EXCHANGE)
PROTON = Ways("IMAP4rev1 IDLE UIDPLUS ID", refuses=(("UID EXPUNGE", "unknown"),), chatter=True)
NETEASE = Ways("IMAP4rev1 ID UIDPLUS", refuses=(("unnamed (SELECT|EXAMINE)", "Unsafe Login."),))
OBJECTS = Ways(f"{_ALL} OBJECTID", "EMAILID")


@dataclass
class Message:
    raw: bytes
    came: str


@dataclass
class Folder:
    use: str
    uidvalidity: int = 1
    messages: dict[int, tuple[Message, set[str]]] = field(default_factory=dict)  # and flags
    next: int = 1

    def put(self, message: Message, flags: set[str]) -> int:
        self.messages[self.next] = message, flags
        self.next += 1
        return self.next - 1


class ScriptedImap:
    def __init__(self, ways: Ways, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.ways, self.port = ways, int(listening.getsockname()[1])
        self._has_labels = ways.ids == "X-GM-MSGID"
        self.folders = {name: Folder(use) for name, use in ways.folders}
        self.commands: list[str] = []
        self.logins = self.most = 0
        self.change: Change = lambda command, answer: answer
        self.lock = threading.RLock()
        self._listening, self._tls = listening, tls
        self._sockets: list[socket.socket] = []

    @property
    def open(self) -> int:
        """Connections that neither side has closed, whatever is still unread of them."""
        ours = [each for each in self._sockets if each.fileno() >= 0]
        return [each.getsockopt(socket.SOL_TCP, socket.TCP_INFO, 1) for each in ours].count(b"\1")

    def deliver(self, raw: bytes, *names: str, year: int = 2037) -> Message:
        """A message comes, into INBOX if nothing else is said."""
        names = names or ("INBOX", *(["[Gmail]/All Mail"] if self._has_labels else []))
        message = Message(raw, f'"01-Jan-{year} 10:00:00 +0000"')
        with self.lock:
            for name in names:
                self.folders[name].put(message, set())
        return message

    def move(self, message: Message, source: str, target: str) -> None:
        with self.lock:
            uid = next(u for u, (m, _) in self.folders[source].messages.items() if m is message)
            self.take(uid, self.folders[source], self.folders[target])

    def take(self, uid: int, source: Folder, target: Folder) -> int:
        message, flags = source.messages[uid]
        is_everywhere = self._has_labels and target.use == r"\Junk"
        for folder in self.folders.values() if is_everywhere else (source,):
            for number in [n for n, (each, _) in folder.messages.items() if each is message]:
                del folder.messages[number]
        return target.put(message, flags)

    def lies(self, message: Message) -> list[str]:
        """The folders in which a message is; once for each copy."""
        return [n for n, f in self.folders.items() for m, _ in f.messages.values() if m is message]

    def restart(self) -> None:
        """With other UIDs and UIDVALIDITY."""
        with self.lock:
            for folder in self.folders.values():
                folder.uidvalidity += 1
                folder.messages = dict(enumerate(reversed(folder.messages.values()), start=1))
        self.hang_up()

    def hang_up(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            client = self._tls.wrap_socket(client, server_side=True) if self._tls else client
            self._sockets.append(client)
            with suppress(OSError, ValueError), client, client.makefile("rb") as lines:
                _Session(self, client, lines).run()


class _Session:
    def __init__(self, server: ScriptedImap, client: socket.socket, lines) -> None:  # type: ignore[no-untyped-def]
        self.server, self.ways, self.client, self.lines = server, server.ways, client, lines
        self.folder = Folder("")
        self.view: set[int] = set()  # what the client was told of the folder
        self.is_known, self.is_named, self.verb, self.code = False, False, "", ""

    def run(self) -> None:
        self.say("GREETING", b"* OK ready\r\n")
        while line := self.lines.readline().decode().rstrip("\r\n"):
            found = _WORDS.findall(line)
            tag, verb, *words = (json.loads(w) if w.startswith('"') else w for w in found)
            self.server.commands.append(line.partition(" ")[2])
            self.command(tag, f"UID {words.pop(0)}" if verb == "UID" else verb, words)

    def say(self, command: str, answer: bytes) -> None:
        changed = self.server.change(command, answer)
        if changed is None:
            self.client.shutdown(socket.SHUT_RDWR)
            raise OSError
        for piece in [changed] if isinstance(changed, bytes) else changed:
            self.client.sendall(piece)

    def command(self, tag: str, verb: str, words: list[str]) -> None:
        self.verb, whole = verb, " ".join(("" if self.is_named else "unnamed", verb, *words))
        refusal = next((said for what, said in self.ways.refuses if re.search(what, whole)), "")
        same = {"EXAMINE": "SELECT", "UID COPY": "UID MOVE"}.get(verb, verb)
        method = getattr(self, "do_" + same.lower().replace(" ", "_"), self.do_other)
        with self.server.lock:
            said = None if refusal else method(words)
            told = self.sync() if verb in ("NOOP", "UID MOVE", "UID EXPUNGE") else b""
        if verb == "IDLE" and not refusal:
            self.idle(tag)
        elif said is None:
            self.say(verb, f"{tag} {f'NO {refusal}' if refusal else 'BAD unknown'}\r\n".encode())
        else:
            self.say(verb, said + told + f"{tag} OK {self.code}done\r\n".encode())
            self.code = ""

    def idle(self, tag: str) -> None:
        self.say("IDLE", b"+ idling\r\n")
        while not select.select([self.client], [], [], 0.02)[0]:
            if told := self.sync():
                self.say("TOLD", told)
        if line := self.lines.readline().decode().strip():
            self.server.commands.append(line)
        self.say("DONE", f"{tag} OK done\r\n".encode())

    def sync(self) -> bytes:
        before, self.view = self.view, set(self.folder.messages)
        exists = b"* %d EXISTS\r\n" % len(self.view)
        return b"* 1 EXPUNGE\r\n" * len(before - self.view) + exists * bool(self.view - before)

    def do_other(self, words: list[str]) -> bytes | None:
        self.is_known |= self.verb == "LOGIN"
        self.is_named |= self.verb == "ID"
        self.server.logins += self.verb == "LOGIN"
        self.server.most = max(self.server.most, self.server.open)
        known = self.ways.capabilities if self.is_known else "imap4rev1"
        said = f"* CAPABILITY {known}\r\n".encode() * (self.verb == "CAPABILITY")
        return said if self.verb in _KNOWN else None

    def do_list(self, words: list[str]) -> bytes:
        tells = "SPECIAL-USE" in self.ways.capabilities
        found = [(self.name(n), f.use * tells) for n, f in self.server.folders.items()]
        lines = [b'* LIST (%b) "/" %b\r\n' % (use.encode(), name) for name, use in found]
        if "STATUS" in " ".join(words):
            lines += [self.do_status([name]) or b"" for name in self.server.folders]
        return b"".join(lines)

    def do_status(self, words: list[str]) -> bytes | None:
        folder = self.server.folders.get(words[0])
        if folder is None:
            return None
        unseen = sum(r"\Seen" not in flags for _, flags in folder.messages.values())
        items = b"UIDVALIDITY %d UIDNEXT %d MESSAGES %d UNSEEN %d HIGHESTMODSEQ 1"
        values = (folder.uidvalidity, folder.next, len(folder.messages), unseen)
        return b"* STATUS %b (%b)\r\n" % (self.name(words[0]), items % values)

    def name(self, name: str) -> bytes:
        if self.ways.literals:
            return b"{%d}\r\n%b" % (len(name.encode()), name.encode())
        return json.dumps(name).encode()

    def do_select(self, words: list[str]) -> bytes | None:
        found = self.server.folders.get(words[0])
        if found is None:
            return None
        self.folder, self.view = found, set()
        flags = b"* OK [PERMANENTFLAGS (\\Seen \\Deleted \\*)] any\r\n"
        number = b"* OK [UIDVALIDITY %d] is\r\n" % found.uidvalidity
        return (self.sync() or b"* 0 EXISTS\r\n") + flags + number

    def do_uid_search(self, words: list[str]) -> bytes:
        ways = {"ALL": ("", False), "UNSEEN": (r"\Seen", False), "DELETED": (r"\Deleted", True)}
        flag, kind = ways[words[-1]]
        lying = self.folder.messages.items()
        chosen = [str(uid) for uid, (_, flags) in lying if (flag in flags) is kind]
        if "RETURN" not in words:
            return f"* SEARCH {' '.join(chosen)}\r\n".encode()
        found = f" ALL {','.join(chosen)}" if chosen else ""
        return f'* ESEARCH (TAG "x") UID{found}\r\n'.encode()

    def do_uid_fetch(self, words: list[str]) -> bytes | None:
        wanted, items = {int(word) for word in words[0].split(",")}, " ".join(words[1:])
        if "X-GUID" in items and self.ways.ids != "X-GUID":
            return None
        told = []
        for number, (uid, (message, _)) in enumerate(self.folder.messages.items(), start=1):
            if uid in wanted:
                told.append(b"* %d FETCH (%b)\r\n" % (number, self.fetched(uid, message, items)))
            elif self.ways.chatter:
                told.append(b"* %d FETCH (UID %d FLAGS (\\Seen))\r\n" % (number, uid))
                told.append(b"* %d FETCH (FLAGS ())\r\n" % number)
        return b"".join(told)

    def fetched(self, uid: int, message: Message, items: str) -> bytes:
        said = f"UID {uid} RFC822.SIZE {len(message.raw)} INTERNALDATE {message.came}"
        value = f"({id(message)})" if self.ways.ids == "EMAILID" else f"{id(message)}"
        said += f" {self.ways.ids} {value}" if self.ways.ids else ""
        if part := re.search(r"BODY\.PEEK\[\]<(\d+)\.(\d+)>", items):
            start, size = map(int, part.groups())
            what, body = f"BODY[]<{start}>", message.raw[start : start + size]
        elif "HEADER.FIELDS" in items:
            found = re.search(rb"(?im)^message-id:.*\r\n", message.raw)
            what = "BODY[HEADER.FIELDS (MESSAGE-ID)]"
            body = (found[0] if found else b"") + b"\r\n"
        else:
            return said.encode()
        return f"{said} {what} {{{len(body)}}}\r\n".encode() + body

    def do_uid_store(self, words: list[str]) -> bytes:
        if int(words[0]) in self.folder.messages:
            self.folder.messages[int(words[0])][1].update(words[2].strip("()").split())
        return b""

    def do_uid_move(self, words: list[str]) -> bytes | None:
        target, uid = self.server.folders.get(words[1]), int(words[0])
        if target is None or uid not in self.folder.messages:
            return None
        copied = self.verb == "UID COPY" and target.put(self.folder.messages[uid][0], set())
        new = copied or self.server.take(uid, self.folder, target)
        self.code = f"[COPYUID {target.uidvalidity * (not self.ways.chatter)} {uid} {new}] "
        return b""

    def do_uid_expunge(self, words: list[str]) -> bytes:
        if r"\Deleted" in self.folder.messages.get(int(words[0]), ("", ""))[1]:
            del self.folder.messages[int(words[0])]
        return b""


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
