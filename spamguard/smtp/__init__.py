"""The grammar of SMTP and LMTP (RFC 5321, RFC 2033): replies, addresses, parameters, end of data.

Pure: bytes in, values out. Bytes from the network are checked here, strictly, before anything is
done with them.
"""
