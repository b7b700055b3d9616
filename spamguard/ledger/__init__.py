"""What we were taught: receipts, and the lessons that follow from them.

The ledger is the only truth; tables and snapshots are folds of it. Must never know mail, tables or
the engine.
"""
