"""A daemon that judges for clients of rspamd and SpamAssassin, for tests with those clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e import daemon
from tests.e2e.ports import free_port

_MESSAGES = 800  # that its filter was taught
SPAM, HAM = (daemon.unseen(label, 8, _MESSAGES) for label in ("spam", "ham"))  # new to it
del SPAM[3], HAM[4], HAM[2]  # it has doubts about these, depending on who hands them over
IN_FORCE_SECONDS = (
    45.0  # from the answer to a lesson to its being in force: less than is between two settlings
)


@dataclass(frozen=True, slots=True)
class ScannerSite:
    """A running daemon. port: of its scanner door. password: of clients that teach there."""

    running: daemon.Daemon
    port: int
    password: str = "a secret"


@contextmanager
def site(
    root: Path, protocol: str, more: str = "", *, personal: bool = False
) -> Iterator[ScannerSite]:
    """A daemon with a filter that was taught something, and one scanner. more: further lines of it,
    indented by four.
    """
    port = free_port()
    password = root / "password"
    password.write_text("a secret\n")
    password.chmod(0o600)
    file = root / "spamguard.yaml"
    file.write_text(
        f"workers: 2\npersonal: {str(personal).lower()}\nscanners:\n  - listen: {protocol}://127.0.0.1:{port}\n{more}"
    )
    with daemon.running(
        daemon.taught(root / "state", _MESSAGES), "--config", str(file), port=port
    ) as running:
        yield ScannerSite(running, port)
