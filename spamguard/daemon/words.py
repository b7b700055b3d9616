"""What a worker says to the master: one byte each. Apart, so that the master needs nothing of what workers need."""

READY = b"r"  # it accepts
BEAT = b"b"  # it is well
SETTLE = b"s"  # lessons wait for settling
