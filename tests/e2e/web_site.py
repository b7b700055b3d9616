"""The real daemon with page and API, mail that passes through it, and users who log in."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.e2e import daemon
from tests.e2e.daemon import Daemon
from tests.e2e.ports import free_port, wait_for_port
from tests.support.waiting import PATIENCE, eventually


@dataclass
class Site:
    """Mail of one listener is delivered to a Maildir; spam of the other is quarantined. web: more
    keys of that part of the configuration. hop: another next hop.
    """

    state: Path
    passing: int = field(default_factory=free_port)
    holding: int = field(default_factory=free_port)
    port: int = field(default_factory=free_port)
    web: Mapping[str, object] = field(default_factory=dict)
    hop: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def box(self) -> Path:
        return self.state.with_name("Maildir")

    @contextmanager
    def running(self) -> Iterator[Daemon]:
        """Until the page answers."""
        usual = {"position": "standalone", "next_hop": self.hop or f"maildir:{self.box}"}
        rules = [{"when": "spam", "action": "quarantine"}]
        listeners = [
            {"listen": f"smtp://127.0.0.1:{self.passing}", **usual},
            {"listen": f"smtp://127.0.0.1:{self.holding}", **usual, "rules": rules},
        ]
        file = self.state.with_name(f"{self.state.name}.yaml")
        web = {"listen": f"127.0.0.1:{self.port}", **self.web}
        file.write_text(
            yaml.safe_dump(
                {"state": str(self.state), "workers": 1, "web": web, "listeners": listeners}
            )
        )
        with daemon.running(self.state, "--config", str(file), port=self.passing) as running:
            wait_for_port(self.port)
            yield running

    def link(self, *who: str) -> str:
        """A one-time link, as the command makes it. who: options such as --user anna."""
        return self.command("login-link", *who).strip()

    def command(self, *words: str) -> str:
        """The output of a command."""
        return daemon.command(self.state, *words)

    def send(
        self,
        *messages: bytes,
        sender: str = "news@offers.example",
        to: Sequence[str] = ("anna@example.net",),
        held: bool = False,
    ) -> None:
        """Mail comes."""
        with smtplib.SMTP(
            "127.0.0.1", self.holding if held else self.passing, timeout=PATIENCE
        ) as client:
            for raw in messages:
                client.sendmail(sender, to, raw)

    def delivered(self, text: bytes) -> bytes:
        """The delivered message with this text; waits until it is in the Maildir."""
        found: list[bytes] = []

        def is_there() -> bool:
            found[:] = [
                raw
                for raw in (file.read_bytes() for file in self.box.glob("**/new/*"))
                if text in raw
            ]
            return bool(found)

        eventually(is_there, f"{text!r} is delivered")
        return found[0]
