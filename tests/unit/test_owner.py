"""Root in somebody else's state directory: what its owner puts there must not reach beyond what the
owner could do alone.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from spamguard.cli import main
from spamguard.folders.sightings import Sightings
from spamguard.proxy.history import History
from spamguard.web.auth import CredentialStore
from tests.unit.filters import mail, opened, teach

NOBODY = 65534
MAGIC = bytes.fromhex("d9d505f920a163d7")  # of SQLite's journals
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def state(tmp_path) -> Path:
    """A filter that belongs to somebody else, with everything in it that a command may open."""
    place = tmp_path / "state"
    place.mkdir()
    with opened(place) as one:
        teach(one, mail(4))
    Sightings.open(place / "sightings.sqlite").close()
    History.open(place / "history.sqlite", 8 << 20, 1).close()
    CredentialStore.open(place).close()
    for path in (place, *place.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    for above in (tmp_path, *tmp_path.parents):  # whoever owns it must get there
        above.chmod(above.stat().st_mode | 0o111)
    return place


@pytest.fixture
def treasure(tmp_path) -> Path:
    """A file of root's, in a directory of root's."""
    place = tmp_path / "root's"
    place.mkdir(mode=0o755)
    (place / "treasure").write_text("gold")
    return place / "treasure"


def journal_that_deletes(database: Path, victim: Path) -> None:
    """As if a transaction over several files had been cut off: SQLite then takes the journal that
    they have in common away.

    Format: "Database File Format", section 3 (sqlite.org/fileformat2.html).
    """
    page = int.from_bytes(database.read_bytes()[16:18], "big")
    head = MAGIC + struct.pack(">IIIII", 0, 0, database.stat().st_size // page, 512, page)
    name = bytes(victim)
    tail = (
        struct.pack(">I", 0x40000000 // page + 1)
        + name
        + struct.pack(">II", len(name), sum(name))
        + MAGIC
    )
    journal = database.with_name(database.name + "-journal")
    journal.write_bytes(head.ljust(512, b"\0") + tail)
    os.chown(journal, NOBODY, NOBODY)


def command(state: Path, *arguments: object) -> int:
    return main(["--state", str(state), *map(str, arguments)])


USES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "ledger": ("ledger.sqlite", lambda state: command(state, "status")),
    "history": ("history.sqlite", lambda state: command(state, "explain", "0" * 16)),
    "sightings": (
        "sightings.sqlite",
        lambda state: Sightings.open(state / "sightings.sqlite").close(),
    ),
    "sightings in a backup": (
        "sightings.sqlite",
        lambda state: command(state, "backup", state.parent / "backup"),
    ),
    "tokens": ("access.sqlite", lambda state: command(state, "token", "list")),
    "login link": (
        "access.sqlite",
        lambda state: command(state, "login-link", "--user", "anna", "--url", "http://localhost"),
    ),
}


@pytest.mark.parametrize("use", USES)
def test_a_journal_beside_a_database_deletes_nothing_of_root_s(state, treasure, use):
    name, run = USES[use]
    journal_that_deletes(state / name, treasure)
    with ExitStack() as stack:
        if not use.startswith("sightings") or "backup" in use:
            run(state)
        else:
            stack.enter_context(pytest.raises(Exception, match="sightings"))
            run(state)
    assert treasure.read_text() == "gold"
    assert os.geteuid() == 0


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_what_was_restored_belongs_to_the_owner(state, mode):
    command(state, "backup", state.parent / "backup")
    state.parent.chmod(mode)
    assert command(state, "restore", "--replace", state.parent / "backup") == 0
    assert {path.name: path.stat().st_uid for path in state.rglob("*")} == {
        path.name: NOBODY for path in state.rglob("*")
    }
