"""`python -m spamguard`, and the console script.

`teach-pipe` runs without the other commands, because the user who moves a message waits for it. All
other commands start in `spamguard.cli`. This module must do nothing when imported: the
processes of a pool import it again.
"""

from __future__ import annotations

import os
import sys

_STREAMS = (
    (0, "stdin", "r", os.O_WRONLY),
    (1, "stdout", "w", os.O_RDONLY),
    (2, "stderr", "w", os.O_WRONLY),
)


def main() -> int:
    _replace_closed_streams()
    try:
        if sys.argv[1:2] == ["teach-pipe"]:
            from spamguard.learning import client  # noqa: PLC0415  one of two is needed

            return client.main(sys.argv[2:])
        from spamguard.cli import main as run_command  # noqa: PLC0415  one of two is needed

        return run_command()
    except KeyboardInterrupt:  # while a command is loaded
        return 130  # as `cli.common.EXIT_INTERRUPTED`, which may not be loaded yet


def _replace_closed_streams() -> None:
    """Open the null device, in the wrong direction, for each standard stream that the caller has
    closed. Without this Python would print on standard output what is meant for standard error, and
    the next file to be opened would take the stream's descriptor.
    """
    for number, name, mode, flags in _STREAMS:
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  stays open


if __name__ == "__main__":
    sys.exit(main())
