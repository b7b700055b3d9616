"""Mail that is reached by IMAP (RFC 3501, 9051): an account is one more kind of mailbox.

From the wire upwards: `connection` speaks to a server and knows nothing of us; `bodies` are the
messages that come over it; `line` holds the two connections of an account. `folders` gives its
folders names and roles. `records` is a file for each account: which message lies where, what we
know of it, and what we were about to do; `listing` keeps it up to date. `account` looks, judges (by
`judge`) and moves. `mailboxes` shows all accounts as `folders.broker.Mailboxes`, and `hub` runs
them. Nothing here takes a message apart.
"""
