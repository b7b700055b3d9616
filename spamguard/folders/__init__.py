"""Folders teach: users move mail, and that is all the training there is.

`watcher` is the loop, and the file to read first: it waits for changes and asks a queue which
mailbox comes next. `scan` does a small step there: it finds the names that came and went and reads
new files. What that means follows from where each message was last seen (`sightings`), by pure
tables (`reconcile`), and from what each folder is for (`roles`).

`maildir` is the only way to users' mail: it reads the disk, and `changes` tells what has changed
there. `broker` reads it by way of a process that has more rights, so these three never import
anything that parses mail.
"""
