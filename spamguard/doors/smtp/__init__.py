"""Mail in by SMTP or LMTP: the server's side of the dialogue. Knows the proxy behind it and nothing of what that does."""

from spamguard.doors.smtp.door import open_door
from spamguard.reception.door import Door

__all__ = ["Door", "open_door"]
