"""The mail proxy between a door and the next hop: judge, tag, hand on, and say yes only when somebody else has.

Knows nothing of how mail comes in; the doors call it.
"""
