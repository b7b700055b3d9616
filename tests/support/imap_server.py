"""Dovecot's IMAP without Dovecot around it: a few lines of inetd start `imap` for each connection,
on a Maildir wherever it lies. All commands are kept, and a connection can be cut after any of them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spamguard.config.accounts import Account, AccountTls, Mode

_CONFIGURATION = """protocols = imap
base_dir = {place}/run
mail_location = maildir:{maildir}{layout}
first_valid_uid = 1
mail_uid = {uid}
mail_gid = {gid}
ssl = no
mailbox_idle_check_interval = 1s
{capability}
namespace inbox {{
  inbox = yes
  separator = {separator}
  mailbox Junk {{
    special_use = \\Junk
  }}
}}
"""
# `imap` refuses to run as root: as somebody who may do the same.
_RIGHTS = ("dac_override", "dac_read_search", "fowner", "chown")
_AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] + [
    f"--{kind}-caps=" + ",".join(f"+{right}" for right in _RIGHTS) for kind in ("inh", "ambient")
]


@dataclass
class ImapServer:
    """users: the Maildir of each. cuts: says of a command whether the connection ends after it.
    refused: commands with such a word are.
    """

    users: Mapping[str, Path]
    capability: str = ""
    cuts: Callable[[str], bool] = lambda _: False
    refused: tuple[str, ...] = ()
    commands: list[str] = field(default_factory=list)
    _listening: socket.socket = field(default_factory=socket.socket)
    _place: str = ""

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def account(self, user: str, mode: Mode = Mode.MOVE, **options: Any) -> Account:
        password = Path(self._place, "password")
        password.write_text("anything\n")
        values = {"port": self.port, "tls": AccountTls.NONE, "mode": mode, **options}
        return Account(user, "127.0.0.1", user, password, **values)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rwb") as stream, suppress(OSError, ValueError):
            stream.write(b"* OK ready\r\n")
            stream.flush()
            while line := stream.readline():
                tag, verb, *words = line.decode().split()
                if verb.upper() == "LOGIN":
                    self._run(client, stream, tag, words[0].strip('"'))
                    return
                if verb.upper() == "CAPABILITY":
                    stream.write(b"* CAPABILITY IMAP4rev1\r\n")
                stream.write(f"{tag} OK done\r\n".encode())
                stream.flush()

    def _run(self, client: socket.socket, stream, tag: str, user: str) -> None:  # type: ignore[no-untyped-def]
        ours, theirs = socket.socketpair()
        maildir = self.users[user]
        nested = any(each.parent.name[0] != "." for each in maildir.glob("*/cur"))
        is_root = os.getuid() == 0
        text = _CONFIGURATION.format(
            place=self._place,
            maildir=maildir,
            layout=":LAYOUT=fs" if nested else "",
            separator="/" if nested else ".",
            uid=65534 if is_root else os.getuid(),
            gid=65534 if is_root else os.getgid(),
            capability=f"imap_capability = {self.capability}" if self.capability else "",
        )
        file = Path(self._place, f"{user}.conf")
        file.write_text(text)
        words = ["doveconf", "-c", str(file), "-m", "imap", "-e", "/usr/lib/dovecot/imap"]
        process = subprocess.Popen(
            [*_AS_NOBODY, *words] if is_root else words,
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "USER": user, "HOME": self._place},
        )
        theirs.close()
        try:
            with ours, ours.makefile("rb") as answers:
                answers.readline()  # * PREAUTH
                client.sendall(f"{tag} OK Logged in\r\n".encode())
                threading.Thread(target=_copy, args=(answers, client), daemon=True).start()
                while line := stream.readline():
                    self.commands.append(line.decode("latin-1").strip())
                    if any(word in self.commands[-1] for word in self.refused):
                        client.sendall(line.split()[0] + b" BAD I do not know that\r\n")
                        continue
                    ours.sendall(line)
                    if self.cuts(self.commands[-1]):
                        time.sleep(0.1)  # what it does, it has done
                        process.terminate()
                        process.wait()
                        client.shutdown(socket.SHUT_RDWR)
                        return
        finally:
            process.terminate()
            process.wait()


def _copy(source, target: socket.socket) -> None:  # type: ignore[no-untyped-def]
    with suppress(OSError, ValueError):
        while piece := source.read1(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(
    users: Mapping[str, Path],
    capability: str = "",
    cuts: Callable[[str], bool] = lambda _: False,
    refused: tuple[str, ...] = (),
) -> Iterator[ImapServer]:
    with (
        tempfile.TemporaryDirectory() as place,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        Path(place).chmod(0o755)
        server = ImapServer(users, capability, cuts, refused, _listening=listening, _place=place)
        threading.Thread(target=server._accept, daemon=True).start()
        yield server
