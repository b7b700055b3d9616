"""The doors: how mail comes in (SMTP, LMTP), and how programs ask and teach.

Mail of the SMTP and LMTP door goes through a `Proxy` to the next hop. The scanner doors (milter,
rspamd, spamd) answer mail servers that deliver themselves; they share `scanner`. `teach` takes
lessons from programs of this machine, and from mail that is forwarded. `listener` has what all
doors share: accepting, limits, TLS. Must never judge or learn anything itself, and never trust what
a client says of another one unless the operator trusts that client. Read `listener` first, then one
door, such as `spamd`.
"""
