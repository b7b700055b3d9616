"""A program for the tests: says that settling is due, and sleeps."""

from __future__ import annotations

import socket
import sys
import time

from spamguard.daemon.words import SETTLE

if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        channel.send(SETTLE)
        time.sleep(600)
