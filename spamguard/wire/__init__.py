"""The grammar of SMTP and LMTP (RFC 5321, RFC 2033): replies, addresses, parameters, the end of data. Pure: bytes in, values out.

What comes from the network is checked here, strictly, before anything is done with it.
"""
