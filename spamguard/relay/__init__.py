"""How mail goes out: to the next hop by SMTP or LMTP, or into a Maildir.

Must never say yes for a message that the next hop has not said yes to, never send one twice, and never change a byte of it.
"""
