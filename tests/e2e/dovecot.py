"""A real Dovecot for a test: LMTP on a socket and a port, IMAP on a port, a Maildir
for each user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.ports import free_port, open_directory, wait_for_port
from tests.support.waiting import PATIENCE
from tests.unit.folders.maildirs import came

_CONFIGURATION = """protocols = lmtp imap
base_dir = {root}/run
state_dir = {root}/state
log_path = {root}/dovecot.log
instance_name = {root}
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
mail_location = maildir:{root}/mail/%n
mail_uid = {uid}
mail_gid = {gid}
first_valid_uid = 1
auth_username_format = %Ln
lmtp_save_to_detail_mailbox = no
default_internal_user = dovecot
default_login_user = dovenull
passdb {{
  driver = static
  args = {password}
}}
userdb {{
  driver = static
  args = allow_all_users=yes uid={uid} gid={gid} home={root}/mail/%n
}}
namespace inbox {{
  inbox = yes
  separator = .
  mailbox Junk {{
    special_use = \\Junk
    auto = create
  }}
}}
service lmtp {{
  unix_listener {root}/lmtp {{
    mode = 0666
  }}
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {lmtp_port}
  }}
}}
service imap-login {{
  inet_listener imap {{
    port = {imap_port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Dovecot:
    """A running Dovecot."""

    root: Path
    lmtp_port: int
    imap_port: int

    @property
    def lmtp_socket(self) -> Path:
        """Where LMTP is spoken."""
        return self.root / "lmtp"

    def delivered(self, user: str, count: int = 1, seconds: float = 20) -> list[bytes]:
        """The messages in a user's INBOX, oldest first; waits until there are `count`."""
        until = time.monotonic() + seconds
        box = self.root / "mail" / user
        while (
            len(
                found := sorted(
                    (path for part in ("new", "cur") for path in (box / part).glob("*")), key=came
                )
            )
            < count
        ):
            assert time.monotonic() < until, (
                f"{len(found)} of {count} messages came; the log ends:\n{self.log()[-4000:]}"
            )
            time.sleep(0.05)
        return [path.read_bytes() for path in found]

    def log(self) -> str:
        """The log so far."""
        file = self.root / "dovecot.log"
        return file.read_text(errors="replace") if file.exists() else ""


@contextmanager
def running(
    extra: str | Callable[[Path], str] = "", *, password: str = "nopassword=y"
) -> Iterator[Dovecot]:
    """A Dovecot that accepts mail for every user. extra: more settings, or a function that makes
    them from its directory. password: for all users, as in password=geheim.
    """
    with open_directory() as root:
        dovecot = Dovecot(root, free_port(), free_port())
        for name in ("mail", "run", "state"):
            (root / name).mkdir()
        if os.getuid() == 0:
            shutil.chown(root / "mail", "nobody")
        uid, gid = (65534, 65534) if os.getuid() == 0 else (os.getuid(), os.getgid())
        text = _CONFIGURATION.format(
            root=root,
            uid=uid,
            gid=gid,
            lmtp_port=dovecot.lmtp_port,
            imap_port=dovecot.imap_port,
            password=password,
        )
        text += extra if isinstance(extra, str) else extra(root)
        (root / "dovecot.conf").write_text(text)
        process = subprocess.Popen(
            ["dovecot", "-F", "-c", root / "dovecot.conf"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for port in (dovecot.lmtp_port, dovecot.imap_port):
                wait_for_port(port)
            yield dovecot
        except BaseException as error:
            told = [line for line in dovecot.log().splitlines() if ": Info: " not in line]
            error.add_note("\n".join(["Dovecot said:", *told[-40:]]))
            raise
        finally:
            process.terminate()
            process.wait(PATIENCE)
