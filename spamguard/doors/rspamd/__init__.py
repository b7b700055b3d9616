"""Verdicts and lessons for rspamd's clients: rspamc, Haraka, Exim and others, as an rspamd would give them by HTTP."""
