"""Lessons: how they come in, wait, are learnt, counted, and taken back.

Every way to teach ends in `lessons`. Processes without a filter put a lesson into the queue on the
disk (`queue`) and may answer at once. `status_files` tells users what was refused, and `client` is
the small program that delivery agents call. `undo` takes back what a user has taught, and reads old
messages again after an upgrade; `ageing` forgets the oldest lessons where the configuration says
how many are kept.

A lesson is taken only once it is on the disk, no user can teach in another's name, and nothing here
changes tables: that is for settling. Read `lessons` first.
"""
