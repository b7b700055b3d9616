"""How mail goes out: to the next hop by SMTP or LMTP, into a Maildir, or into the quarantine.

`base` has the contract of a next hop and its errors; `smtp.create_next_hop` makes one. Each
message is attempted once. Must never say yes to a message before the next hop has, never send one
twice, and never change a byte of it. Read `base` first, then `smtp`.
"""
