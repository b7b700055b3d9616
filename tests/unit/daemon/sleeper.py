"""A child for the tests: says that settling is due, and sleeps."""

from __future__ import annotations

import time

from spamguard.config.options import Settings
from spamguard.daemon.children import Channel


def main(_settings: Settings, channel: Channel) -> None:
    channel.request_settling()
    time.sleep(600)
