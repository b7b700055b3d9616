"""A program for the tests: says that settling is due, and sleeps."""

from __future__ import annotations

import sys
import time

from spamguard.daemon.children import child_context

if __name__ == "__main__":
    with child_context(sys.argv[1:]) as (_, channel):
        channel.request_settling()
        time.sleep(600)
