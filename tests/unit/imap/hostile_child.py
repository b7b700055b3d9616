"""A process with one account, as hostile servers meet it: `hostile_child.py DIRECTORY PORT MODE
SILENCE`.

It looks and reads until its standard input ends, and then says how much memory it took at most (kB)
and how often it looked.
"""

from __future__ import annotations

import re
import select
import sys
from contextlib import suppress
from pathlib import Path

from spamguard import log
from spamguard.config.accounts import Account, AccountTls, Mode
from spamguard.imap.account import AccountWatch, RecentMessages
from tests.unit.imap.stage import judge


def main(directory: Path, port: int, mode: Mode, silence: float) -> None:
    log.configure()
    (directory / "password").write_text("secret\n")
    account = Account(
        *("anna", "127.0.0.1", "anna", directory / "password"),
        port=port,
        tls=AccountTls.NONE,
        mode=mode,
    )
    watch, steps = AccountWatch(account, directory, judge, lambda *_: None, RecentMessages()), 0
    watch.silence = silence
    while not select.select([sys.stdin], [], [], 0.0)[0]:
        watch._poll_at = 0.0
        watch.step()
        steps += 1
        for row in watch.folders():
            for name, _ in watch.records.shown(row, hide_unread=False)[-2:]:
                with suppress(OSError):
                    watch.read(row, name)
    watch.close()
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    print(peak[1] if peak else 0, steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Mode(sys.argv[3]), float(sys.argv[4]))
