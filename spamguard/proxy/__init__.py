"""One message on its way from a door to the next hop: judged, tagged, delivered, recorded.

`transaction` is the procedure. `scorer_pool` judges messages in processes of its own, `scorer`,
that may be killed. `history` keeps what became of each message. The room knows
nothing of how mail comes in; the doors call it. Must never say yes to a message before the next
hop, or the quarantine, has. Read `transaction` first.
"""
