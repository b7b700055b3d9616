"""Verdicts and lessons for SpamAssassin's clients: spamc, Exim's `spam`, Haraka and others, as spamd would give them."""
