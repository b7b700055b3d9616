"""spamguard.cli."""
