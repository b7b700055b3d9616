"""The daemon: one master that owns the sockets, and workers that speak SMTP."""
