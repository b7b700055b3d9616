"""A program for the tests: says that settling is due, and sleeps."""

from __future__ import annotations

import socket
import sys
import time

from spamguard.process import SETTLE_BYTE

if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        channel.send(SETTLE_BYTE)
        time.sleep(600)
