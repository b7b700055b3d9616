"""`python -m spamguard`, and the console script. Must do nothing when imported: processes of a pool import it again.

`teach-pipe` is run without loading the other commands: somebody who moves a message waits for it.
"""

import sys

_INTERRUPTED = 130  # 128 + SIGINT; `cli.rim` tells the same, but is not there before it is loaded


def main() -> int:
    """Run one command; its exit status."""
    try:
        return _run()
    except KeyboardInterrupt:  # while a command is loaded
        return _INTERRUPTED


def _run() -> int:
    if sys.argv[1:2] == ["teach-pipe"]:
        from spamguard.teaching import pipe  # noqa: PLC0415

        return pipe.main(sys.argv[2:])
    from spamguard import cli  # noqa: PLC0415

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
