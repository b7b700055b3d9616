"""See it, ask it, correct it: pages and an HTTP API over one service. Nothing here is on the mail's path."""
