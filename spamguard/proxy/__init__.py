"""One message on its way from a door to the next hop: judged, tagged, delivered, recorded.

Knows nothing of how mail comes in; the doors call it. Must never say yes to a message before the
next hop, or the quarantine, has.
"""
