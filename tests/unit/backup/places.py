"""What the tests of backups stand on: the mail that was taught, the command line, and what a state
directory holds.
"""

from pathlib import Path

from spamguard.cli import main
from tests.unit.filters import held, mail, opened

LESSONS = mail(40)


def command(state: Path, *arguments: object) -> int:
    return main(["--state", str(state), *map(str, arguments)])


def state_of(directory: Path) -> dict[str, object]:
    with opened(directory) as one:
        return held(one)


def names(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())
