"""Mail in by SMTP or LMTP: the server's side of the dialogue. Knows the proxy behind it and nothing of what that does."""

from spamguard.doors.smtp.door import Door, open_door

__all__ = ["Door", "open_door"]
