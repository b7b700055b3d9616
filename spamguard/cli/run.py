"""`run`: the daemon, in the foreground. A configuration with mistakes has an exit status of its own: restarting would not mend it."""

from __future__ import annotations

import argparse
import logging
import os
from typing import TYPE_CHECKING

from spamguard.cli import rim, usage
from spamguard.errors import ConfigError

if TYPE_CHECKING:
    from spamguard.settings import Settings

ABOUT = """Run the mail proxy. It takes mail by SMTP or LMTP, judges it, tags it and hands it on; it says yes only when the next hop has.

Without a file it listens on smtp://127.0.0.1:10025 and delivers to a Maildir in its state directory, spam to .Junk in it: to try it
out. Moving a message into .Junk there, or out of it, teaches.

SIGHUP: read the configuration anew, no connection is lost; SIGTERM: finish what is under way, within 10 seconds.
Exit status 78: the configuration has mistakes (`spamguard check FILE` tells the same), or the limit on memory (`ulimit -v`) is too low."""
EXAMPLE = """  spamguard run
  spamguard --state /var/lib/spamguard run --config /etc/spamguard/spamguard.yaml
  spamguard run --config /etc/spamguard/spamguard.yaml --watch '/home/*/Maildir'
  spamguard run --listen smtp://127.0.0.1:10025 --next-hop lmtp:/run/dovecot/lmtp"""


_log = logging.getLogger("spamguard.config")


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "run", run, ABOUT, EXAMPLE)
    parser.add_argument("--config", type=usage.file, metavar="FILE", help="the configuration (YAML); see config/spamguard.yaml")
    parser.add_argument("--listen", metavar="ENDPOINT", help="smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT, instead of what the file says")
    parser.add_argument(
        "--next-hop",
        metavar="ENDPOINT",
        help="smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path, instead of what the file says",
    )
    parser.add_argument(
        "--watch",
        metavar="MAILDIR",
        type=usage.directory,
        action="append",
        default=[],
        help="where moving mail teaches, such as /home/*/Maildir, instead of what the file says; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from spamguard import log
    from spamguard.daemon.master import Master

    file = options.config and options.config.absolute()
    watch = [str(one.absolute()) for one in options.watch]
    read = rim.reader(options, file, listen=options.listen, next_hop=options.next_hop, watch=watch)
    log.configure(os.environ)
    try:
        return Master(lambda: _warning(read())).run()
    except ConfigError as error:
        return rim.misconfigured(error)


def _warning(settings: Settings) -> Settings:
    """The same; warnings go to the log."""
    from spamguard import config

    for warning in config.warnings(settings):
        _log.warning("%s", warning)
    return settings
