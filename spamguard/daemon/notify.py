"""What systemd is told: sd_notify's protocol, datagrams on a Unix socket (sd_notify(3)). Nothing is lost when nobody listens."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress


class Notifier:
    """Tells systemd, if there is one. watchdog_seconds: how often it wants to hear of us; None: it does not."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self.watchdog_seconds = watchdog_seconds

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Notifier:
        """As the service manager has told it; taken out, as it is not meant for children."""
        address = environment.pop("NOTIFY_SOCKET", None)
        interval = environment.pop("WATCHDOG_USEC", "")
        process = environment.pop("WATCHDOG_PID", "")
        wanted = interval.isdecimal() and int(interval) > 0 and process in ("", str(os.getpid()))
        return cls(address, int(interval) / 1e6 if wanted else None)

    def ready(self, status: str) -> None:
        """Up, or up again."""
        self.send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Taking on new settings (systemd.service, Type=notify-reload)."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}", "STATUS=reloading")

    def stopping(self) -> None:
        """Going down."""
        self.send("STOPPING=1", "STATUS=finishing what is under way")

    def alive(self) -> None:
        """All is well."""
        self.send("WATCHDOG=1")

    def send(self, *lines: str) -> None:
        """One datagram. An address that begins with @ is in the abstract namespace (unix(7))."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
            channel.sendto("\n".join(lines).encode(), address)
