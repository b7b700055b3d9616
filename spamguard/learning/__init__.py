"""Lessons: how they come in, wait, are learnt, counted, and taken back.

Every way to teach ends in `lessons`. Processes without a filter put a lesson into the queue on the
disk (`queue`) and may answer at once; `worker` teaches what waits there, and `refusals` remembers
what was dropped. `client` is the small program that delivery agents call. `undo` takes back what a
user has taught, `importers` takes in word lists of other filters, and `reextract` reads old
messages again after an upgrade.

A lesson is taken only once it is on the disk, no user can teach in another's name, and nothing here
changes tables: that is for settling. Read `lessons` first.
"""
