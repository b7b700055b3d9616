"""A program for the tests: the master with the echo assembly, on a configuration file.

`python run_master.py FILE [drain_seconds=…]`. With LISTEN=yes in the environment $LISTEN_PID
becomes this process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spamguard import log
from spamguard.config.load import load_settings
from spamguard.daemon.master import Master
from spamguard.errors import SpamguardError


def main() -> int:
    file, *timing = sys.argv[1:]
    if os.environ.pop("LISTEN", ""):
        os.environ["LISTEN_PID"] = str(os.getpid())
    seconds = {name: float(value) for name, _, value in (one.partition("=") for one in timing)}
    log.configure()
    try:
        master = Master(lambda: load_settings(Path(file)), **seconds)
        master._workers.module = "tests.unit.daemon.echo"
        return master.run()
    except SpamguardError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
