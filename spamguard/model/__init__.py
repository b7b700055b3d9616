"""The tables of one process: a snapshot file, mapped, plus the folded tail of the ledger."""
