"""How mail goes out: to the next hop by SMTP or LMTP, into a Maildir, or into the quarantine.

Must never say yes to a message before the next hop has, never send one twice, and never change a
byte of it.
"""
