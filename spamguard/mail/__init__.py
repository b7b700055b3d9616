"""spamguard.mail."""
