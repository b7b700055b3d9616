"""`open-mailboxes`: the process that opens people's mail for the daemon, so that whatever parses mail needs no right to do so."""

from __future__ import annotations

import argparse
import os

from spamguard.cli import rim, usage
from spamguard.errors import ConfigError

ABOUT = """Open people's mail for a daemon that has no right to. Messages of the mailboxes that `watch` names go to it over the socket
`watch_socket`.

For a service of its own (systemd/spamguard-watch.service), which may read everything, while the daemon, which parses mail, may not.
It reads the configuration itself, answers the daemon's user and root only, writes nothing and knows no network. Started by root it
becomes the user below, and keeps the right to read of all of root's (CAP_DAC_READ_SEARCH).

SIGHUP: read the configuration anew. Exit status 78: the configuration has mistakes."""
EXAMPLE = """  spamguard open-mailboxes --config /etc/spamguard/spamguard.yaml"""

USER = "spamguard-watch"


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "open-mailboxes", run, ABOUT, EXAMPLE)
    parser.add_argument("--config", type=usage.file, metavar="FILE", required=True, help="the configuration of the daemon (YAML)")
    parser.add_argument("--user", metavar="NAME", default=USER, help="whom to run as when started as root (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from spamguard import log
    from spamguard.daemon.opening import Opening

    log.configure(os.environ)
    try:
        return Opening(rim.reader(options, options.config.absolute()), options.user).run()
    except ConfigError as error:
        return rim.misconfigured(error)
