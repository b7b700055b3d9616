"""The process that speaks IMAP gets to its own files, and to nobody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import COMMAND_SECONDS

PROBE = "import os; from spamguard import process; os._exit(process.confine_files([], []))"
PROGRAM = """
import os, ssl, sys
from pathlib import Path
from spamguard import process
from spamguard.config.accounts import Account
from spamguard.config.options import Settings
from spamguard.daemon import imap
from spamguard.folders.roles import SPAM_ROLE
from spamguard.imap.folders import AccountFolder
from spamguard.imap.records import Found, Records

state = Path(sys.argv[1])
account = Account("a", "localhost", "u", state / "secrets" / "a")
imap._confine(Settings(state, (), accounts=(account,)))
print(account.read_secret())
with Records(state / "imap" / "a.sqlite") as records:
    records.set_folders([AccountFolder("Junk", "Junk", SPAM_ROLE)])
    (folder,) = records.folders()
    found = {uid: Found(f"{uid:0100}", 0.0) for uid in range(1, 5000)}
    records.update(folder, 1, "", found, (), {})
    for change in ("UPDATE messages SET state = 3, hash = name", "UPDATE messages SET hash = x''"):
        records._write((change, ()))
    records.note_known(folder)
process.listen_at(state / "imap" / "door", 0o600).close()
print(len(ssl.create_default_context().get_ca_certs()) > 0)
for path in (state / "key", state / "ledger.sqlite", state.parent / "mail"):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_CREAT):
        try:
            os.close(os.open(path, flags))
            print("opened", path, flags)
        except PermissionError:
            pass
try:
    os.listdir(state)
    print("listed")
except PermissionError:
    pass
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def test_it_is_confined(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "secrets").mkdir(parents=True)
    for name in ("key", "ledger.sqlite", "../mail", "secrets/a"):
        (state / name).write_text("secret\n")
    if not run(PROBE).returncode:
        pytest.skip("needs a kernel with Landlock")
    done = run(PROGRAM, str(state))
    assert (done.returncode, done.stdout, done.stderr) == (0, "secret\nTrue\n", "")
