"""The grammar of SMTP and LMTP (RFC 5321, RFC 2033), for doors and next hops. Pure.

`envelope` has the values and a reader of replies; `commands` has the arguments of commands and the
message after DATA. Bytes in, values out: what comes from the network is checked here, strictly,
before anything is done with it. Must never let a byte through that could end a command, a reply or
a message early. Read `envelope` first.
"""
