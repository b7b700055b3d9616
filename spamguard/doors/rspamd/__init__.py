"""Verdicts and lessons for rspamd's clients: rspamc, Haraka, Exim and others, as an rspamd would give them by HTTP."""

from spamguard.doors.rspamd.answers import Statistics
from spamguard.doors.rspamd.door import open_rspamd

__all__ = ["Statistics", "open_rspamd"]
