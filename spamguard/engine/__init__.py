"""The engine: a filter on a ledger, from raw mail to verdicts, lessons and explanations."""
