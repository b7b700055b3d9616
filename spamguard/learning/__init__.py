"""Lessons: how they come in, wait, are learnt, counted, and taken back.

Every way to teach ends in `lessons`, the file to read first. Processes without a filter put a
lesson into the queue on the disk (`queue`) and may answer at once. `status_files` tells users what
was refused, and `client` is the small program that delivery agents call. `undo` takes back what a
user has taught, reads old messages again after an upgrade, and lets the oldest lessons go.
"""
