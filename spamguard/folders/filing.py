"""Whether what we call spam really is put into Junk on delivery, as `we_file` says. Pure.

Where it is not, all spam would pass for what a person has taken out of Junk. So that is believed of what is first seen in INBOX only as
long as most of it is first seen in Junk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from spamguard.folders.reconcile import Rules
from spamguard.folders.teaches import Into
from spamguard.folders.values import Arrival
from spamguard.settings import Action

_LAST = 5  # messages that count: until it is seen that a rule fails, what that leaves in INBOX is taught as ham


def tagged(arrivals: Iterable[Arrival], rules: Rules) -> list[Arrival]:
    """Those that we called spam, and left to others to put into Junk."""
    return [one for one in arrivals if one.signed and one.signed.label in rules.unwanted and one.signed.action is Action.TAG]


class Filing:
    """What was seen of it in one mailbox."""

    def __init__(self) -> None:
        self._filed: deque[bool] = deque(maxlen=_LAST)

    def see(self, spam: Iterable[Arrival], rules: Rules) -> None:
        """Where spam is seen for the first time. Of one look, what was filed counts as the last."""
        found = [rules.into(one.folder) for one in spam]
        self._filed.extend(sorted(into is Into.UNWANTED for into in found if into in (Into.UNWANTED, Into.HAM)))

    @property
    def works(self) -> bool:
        """Whether it was seen to, and most of the time."""
        return 0 < len(self._filed) <= 2 * sum(self._filed)

    @property
    def fails(self) -> bool:
        """Whether that is more than a person's doing."""
        return len(self._filed) - sum(self._filed) > 2 and not self.works
