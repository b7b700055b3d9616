"""One process that is to be there at all times beside the workers: started, started again when it ends, told to go.

Must never wait for it, and never be needed for mail to flow.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf

from spamguard import log
from spamguard.daemon import children
from spamguard.daemon.words import SETTLE
from spamguard.settings import Settings

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds before it is started again when it has ended
_LONG_LIFE = 300.0  # seconds, after which an end is the first one again

_log = logging.getLogger("spamguard.daemon")


class Kept:
    """A process `python -m MODULE CHANNEL SETTINGS MASTER FILES…`, numbers of inherited files and of this process.

    It ends by SIGTERM at once, whatever it is doing, and by itself with this process. settling_due: it has said so.
    """

    def __init__(self, name: str, module: str, selector: selectors.BaseSelector, files: Sequence[int] = ()) -> None:
        self._name = name
        self._module = module
        self._selector = selector
        self._files = files
        self._settings: Settings | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._born = self._pause = 0.0
        self._resume = 0.0
        self._trouble = log.Repeated(_log)  # why it cannot be started
        self.settling_due = False

    def begin(self, settings: Settings | None) -> None:
        """Run with these settings from now on, or not at all."""
        if settings != self._settings:
            self.end()
        self._settings = settings
        self._pause = self._resume = 0.0

    def tend(self) -> None:
        """Whatever is due."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            self._forget()
            self._wait(now)
            _log.error("%s has ended (%s): started again in %.1f s", self._name, status, self._pause)
        if self._process is None and self._settings is not None and now >= self._resume:
            try:
                self._start(self._settings, now)
            except OSError as error:  # no memory or no processes left: that passes
                self._wait(now)
                self._trouble.tell("cannot start %s: %s; tried again every now and then", self._name, error)

    def next_start(self) -> float:
        """Seconds until it is to be started."""
        return max(0.0, self._resume - time.monotonic()) if self._process is None and self._settings is not None else inf

    def end(self) -> None:
        """Let it go, for good unless `begin` follows."""
        self._settings = None
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._forget()

    # ----

    def _start(self, settings: Settings, now: float) -> None:
        self._born = now
        self._process, self._channel = children.start_with(self._module, settings, after=[str(os.getpid())], files=self._files)
        self._selector.register(self._channel, selectors.EVENT_READ, self._hear)
        self._trouble.over()

    def _hear(self) -> None:
        if self._channel is None:
            return
        said = b""
        with suppress(OSError):
            said = self._channel.recv(4096)
        if not said:  # it is ending
            self._selector.unregister(self._channel)
        self.settling_due = self.settling_due or SETTLE in said

    def _forget(self) -> None:
        self._process = None
        if self._channel is not None:
            with suppress(KeyError):
                self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = None

    def _wait(self, now: float) -> None:
        long = now - self._born > _LONG_LIFE
        self._pause = FIRST_PAUSE if long else min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
        self._resume = now + self._pause
