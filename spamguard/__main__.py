"""`python -m spamguard`, and the console script. Must do nothing when imported: processes of a pool
import it again.

`teach-pipe` is run without loading the other commands: somebody who moves a message waits for it.
"""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130  # 128 + SIGINT; `cli.common.EXIT_INTERRUPTED`, which may not be loaded yet
_STREAMS = (
    (0, "stdin", "r", os.O_WRONLY),
    (1, "stdout", "w", os.O_RDONLY),
    (2, "stderr", "w", os.O_WRONLY),
)


def main() -> int:
    """Run one command; its exit status."""
    _hold_closed_descriptors()
    try:
        return _run()
    except KeyboardInterrupt:  # while a command is loaded
        return _INTERRUPTED


def _hold_closed_descriptors() -> None:
    """Standard streams that whoever started us has closed: input and output fail when they are
    used, errors go nowhere.

    Else Python would print on standard output what is for standard error, and the next file to be
    opened would stand in their place.
    """
    for number, name, mode, flags in _STREAMS:
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  stays open


def _run() -> int:
    if sys.argv[1:2] == ["teach-pipe"]:
        from spamguard.learning import client  # noqa: PLC0415  see above

        return client.main(sys.argv[2:])
    from spamguard.cli import main  # noqa: PLC0415  see above

    return main.main()


if __name__ == "__main__":
    sys.exit(main())
