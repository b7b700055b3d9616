"""Postfix's smtp-sink as a next hop: a real server of another project that accepts and discards all
mail.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

from spamguard.config.options import Endpoint, Protocol
from tests.e2e.ports import free_port

SINK = shutil.which("smtp-sink", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def smtp_sink(*options: str, protocol: Protocol = Protocol.SMTP) -> Iterator[Endpoint]:
    """Run one on a free port. options: its own."""
    assert SINK is not None
    port = free_port()
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    lmtp = ["-L"] if protocol is Protocol.LMTP else []
    sink = subprocess.Popen(
        [SINK, *user, *lmtp, *options, f"127.0.0.1:{port}", "100"], stdout=subprocess.DEVNULL
    )
    try:
        _until_it_listens(port)
        yield Endpoint(protocol, "127.0.0.1", port)
    finally:
        sink.terminate()
        sink.wait()


def _until_it_listens(port: int) -> None:
    for _ in range(1500):
        with (
            contextlib.suppress(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", port)),
        ):
            return
        time.sleep(0.02)
    raise TimeoutError("smtp-sink does not start")
