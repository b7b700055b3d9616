"""Verdicts and lessons for SpamAssassin's clients: spamc, Exim's `spam`, Haraka and others, as spamd would give them."""

from spamguard.doors.spamd.door import open_spamd

__all__ = ["open_spamd"]
