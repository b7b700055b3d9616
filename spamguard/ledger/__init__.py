"""The ledger: every vote on every message, and the lessons that follow from the votes.

A vote says that a user finds a message to be of a class; its receipt holds the counted features, so
lessons can be taken back and learnt again without the mail. `votes` decides what the votes on a
message teach together. `sqlite` keeps votes in the order of their commit, in a file that `schema`
describes, and `queries` reads them. `codec` packs features, and `arriving` checks
votes of other installations.

Where many machines learn as one, their votes have one order, the shared log. `shared` keeps a copy
of it in the ledger, with the votes that are not in the log yet, and `events` says what rows of it
look like. Nothing here knows where the log is.

What `votes` defines is what every ledger takes and returns, and tests/contract/test_ledger*.py say
what it promises. Only `sqlite`, `schema`, `queries` and `shared` know SQLite.

The ledger is the only truth: tables and snapshots are folds of it. Must never know mail, tables or
the engine. Read `votes` first.
"""
