"""How mail goes out: to the next hop by SMTP or LMTP, into a Maildir, or into the quarantine.

`next_hop` has the contract and its errors, `smtp` and `maildir` keep it; `smtp.create_next_hop`
makes a next hop. Each message is attempted once.

Must never say yes to a message before the next hop has, never send one twice, and never change a
byte of it. Read `next_hop` first, then `smtp`.
"""
