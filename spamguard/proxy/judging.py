"""What is the same for mail that passes and mail that is asked about: how it is judged, what is told of it, that it is remembered."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spamguard import policy, signature
from spamguard.proxy.contract import Judge, NotScanned
from spamguard.proxy.groups import Group, grouped
from spamguard.proxy.journal import Entry
from spamguard.proxy.tools import Tools
from spamguard.records import Scan
from spamguard.settings import Policy
from spamguard.spool import Spool

_log = logging.getLogger("spamguard.proxy")


class Judging:
    """For one listener or scanner. policy: its own."""

    def __init__(self, judge: Judge, tools: Tools, policy: Policy) -> None:
        self._judge = judge
        self._tools = tools
        self._policy = policy

    async def of(
        self, message: Spool, header: bytes, on_top: bytes, names: Sequence[str], entry: Entry, *, apart: bool
    ) -> tuple[Scan, list[Group]] | None:
        """The verdict and who gets what; None when it could not be judged. The entry tells either.

        header: of the message. on_top: as in `contract.Judge`. names: of those whose mail it is, as far as known. apart: as in `grouped`.
        """
        people = self._tools.people
        found = await self._judge.judge(message, on_top, people.users(names) if people else ())
        entry.judged(found, header)
        if found.settle:
            self._tools.settle()
        if isinstance(found, NotScanned):
            return None
        whose = people.of(names, found.personal) if people and found.personal else [""] * len(names)
        return found, grouped(found, whose, self._policy, apart=apart)

    def fields(self, group: Group, scan: Scan, name: str) -> list[bytes]:
        """What a group is told, signed. name: of the message. SpamguardError: there is no key."""
        signed = signature.sign(self._tools.key(), group.verdict, group.decision.action, name, scan.digest)
        return policy.header_fields(group.verdict, group.decision, signed, tell_probability=self._policy.tell_probability)

    def record(self, entry: Entry) -> None:
        """Remember it. A fault in that must not keep what came of it from being said: the message would come again."""
        try:
            self._tools.record(entry)
        except Exception:  # noqa: BLE001
            _log.exception("%s: a fault in recording this message", entry.id)
