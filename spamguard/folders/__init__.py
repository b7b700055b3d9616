"""Folders teach: users move mail, and that is all the training there is.

`watcher` is the loop, and the file to read first: it waits for changes and asks a queue which
mailbox comes next. `scan` does a small step of what is to be done there: it finds the names that
came and went and reads new files. What that means follows from where each message was last seen
(`sightings`), by pure tables (`reconcile`), and from what each folder is for (`roles`). The lessons
become votes in the ledger, and a file tells users what teaches nothing, and why
(`learning.status_files`).

`mailboxes` is the only way to users' mail: it reads the disk, and `changes` tells what has changed
there. `broker` reads it by way of a process that has more rights and does nothing else; so
`mailboxes`, `changes` and `broker` must never import anything that parses mail.

This room must never write into a mailbox, and never teach what nobody did.
"""
