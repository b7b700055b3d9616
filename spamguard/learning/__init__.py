"""spamguard.learning."""
