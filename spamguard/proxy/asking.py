"""Judging and teaching for programs that hand their mail on themselves: what stands behind every scanner door.

Must never raise because of a message or of what its client says, never believe a client that is not trusted whose mail it is, and
never say that something was learnt before it is on the disk.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from spamguard import policy
from spamguard.ids import RANDOM_BYTES, new_id
from spamguard.policy import Decision
from spamguard.proxy import heads
from spamguard.proxy.contract import Judge, NotScanned
from spamguard.proxy.journal import Entry
from spamguard.proxy.judging import Judging
from spamguard.proxy.lessons import Lessons, Taught
from spamguard.proxy.teachers import Teachers
from spamguard.proxy.tools import Tools
from spamguard.reception.clients import Networks
from spamguard.records import Scan, Verdict
from spamguard.relay.threads import finished
from spamguard.settings import Action, OnError, Policy, Rule, Scanner
from spamguard.spool import Spool
from spamguard.wire.received import received_field
from spamguard.wire.values import Client, Envelope, Recipient, Sender

# The learner must not meet what a scorer has ended at. Once may be chance; at the second time it is poison.
_NOT_LEARNT = {"poison": Taught.IMPOSSIBLE, "error": Taught.IMPOSSIBLE, "crashed": Taught.LATER, "timeout": Taught.LATER}

TOO_LARGE = "too-large"
"""The `problem` of a message that is beyond the limit of its door."""

_log = logging.getLogger("spamguard.proxy")


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody says about a message. message: its bytes, any line ends. peer: address of the connection, "" of a Unix socket.

    sender, recipients: of the envelope, as far as known. client: whom the message comes from. user: whose it is said to be. What
    stands in `client` and `user` counts only where the peer is trusted. received_by: the server that has the message from that client
    and puts its own Received field on top later. queue: the name of the message there. problem: why it cannot be judged, where that
    is known already.
    """

    message: Spool
    peer: str
    sender: str = ""
    recipients: Sequence[str] = ()
    client: Client = field(default_factory=Client)
    user: str = ""
    received_by: str = ""
    queue: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """The answer. id: for `explain` and `learn --id`. fields: header fields to be put on top, without line ends.

    scan, verdict, decision: None where it could not be judged; reason: why. action: TAG, REJECT, QUARANTINE or DEFER. score: as
    X-Spam-Status tells it, `policy.REQUIRED` at the threshold; 0.0 where it could not be judged.
    """

    id: str
    fields: Sequence[bytes]
    action: Action
    reason: str = ""
    scan: Scan | None = None
    verdict: Verdict | None = None
    decision: Decision | None = None
    score: float = 0.0

    @property
    def is_unwanted(self) -> bool:
        """Whether it is called spam."""
        return self.decision is not None and self.decision.is_unwanted

    @property
    def label(self) -> str:
        """Of the verdict, "" where there is none."""
        return self.verdict.label if self.verdict else ""

    @property
    def symbol(self) -> str:
        """What X-Spam-Status names."""
        return policy.symbol(self.label) if self.verdict else "SPAMGUARD_NOT_SCANNED"


class Asking:
    """What stands behind one scanner door. hostname: ours."""

    def __init__(self, scanner: Scanner, judge: Judge, tools: Tools, lessons: Lessons, hostname: str) -> None:
        self.scanner = scanner
        self._policy = _with_rules(scanner)
        self._judge = judge
        self._judging = Judging(judge, tools, self._policy)
        self._people = tools.people
        self._lessons = lessons
        self._hostname = hostname
        self._trusted = Networks(scanner.trusted)
        self._teachers = Teachers(scanner)

    def trusts(self, peer: str) -> bool:
        """Whether what this client says of others is believed."""
        return peer in self._trusted

    async def may_teach(self, peer: str, password: str = "") -> bool:
        """Whether this client may. password: as it told it; a wrong one takes its time."""
        return await self._teachers.admit(peer, password)

    async def judge(self, question: Question) -> Judged:
        """What is thought of it; remembered like mail that passes."""
        now = time.time()
        trusted = self.trusts(question.peer)
        client = question.client if trusted else Client(address=question.peer, peer=question.peer)
        envelope = Envelope(Sender(question.sender), tuple(map(Recipient, question.recipients)), client)
        entry = Entry(new_id(now, os.urandom(RANDOM_BYTES)), now, self.scanner, envelope, question.message.size, frozenset())
        entry.queue = question.queue
        names = (question.user,) if question.user else question.recipients
        try:
            judged = await self._judged(question, entry, names if trusted else (), evidence=trusted)
        except Exception:  # a fault of ours: it was not judged, which has an answer of its own  # noqa: BLE001
            _log.exception("%s: a fault in judging this message", entry.id)
            entry.failed("error")
            judged = None
        found = judged or self._not_judged(entry)
        entry.finish(())
        self._judging.record(entry)
        return found

    async def _judged(self, question: Question, entry: Entry, names: Sequence[str], *, evidence: bool) -> Judged | None:
        if question.problem:
            entry.failed(question.problem)
            return None
        header = heads.header(question.message)
        on_top = self._evidence(entry, header, question.received_by) if evidence else b""
        judged = await self._judging.of(question.message, header, on_top, names, entry, apart=False)
        if judged is None:
            return None
        found, (group,) = judged
        entry.decided(group)
        verdict, decision = group.verdict, group.decision
        fields = self._judging.fields(group, found, entry.id)
        return Judged(entry.id, fields, decision.action, "", found, verdict, decision, policy.told(verdict, decision))

    def _not_judged(self, entry: Entry) -> Judged:
        deferred = self._policy.on_error is OnError.DEFER and entry.reason != TOO_LARGE  # which it would be each time
        action = Action.DEFER if deferred else Action.TAG
        entry.action = action
        return Judged(entry.id, policy.not_scanned(entry.reason), action, entry.reason)

    def _evidence(self, entry: Entry, header: bytes, received_by: str) -> bytes:
        """Who sent it, as a Received field, unless a server has said so in the message already. received_by: as in `Question`."""
        client = entry.envelope.client
        told = not received_by and header[:9].lower().startswith(b"received:")
        if told or not (client.address or client.name or client.helo):
            return b""
        return received_field(client, received_by or self._hostname, "", "", entry.time) + b"\r\n"

    # ---- teaching

    async def teach(self, question: Question, label: str, password: str = "") -> Taught:
        """Have it learnt as of this class, within a second; "": what was said about it is taken back."""
        if not await self.may_teach(question.peer, password):
            _log.warning("%s: %s wants to teach and may not", self.scanner.endpoint, question.peer or "somebody")
            return Taught.FORBIDDEN
        user = self._teaching_user(question.user) if self.trusts(question.peer) else ""
        try:
            found = await self._judge.judge(question.message, b"", ())
            if isinstance(found, NotScanned) and found.reason in _NOT_LEARNT:
                return _NOT_LEARNT[found.reason]
            digest = b"" if isinstance(found, NotScanned) else found.digest
            return await finished(partial(self._lessons.take, question.message, label, user, self.scanner.endpoint.protocol, digest))
        except OSError as error:
            _log.error("a lesson cannot be kept: %s", error)
        except Exception:  # a fault of ours  # noqa: BLE001
            _log.exception("a fault in taking a lesson")
        return Taught.LATER

    def _teaching_user(self, name: str) -> str:
        """Whose lesson it is, by the name under which their mail is judged."""
        candidates = self._people.candidates(name) if self._people and name else ()
        return candidates[0] if candidates else name


def _with_rules(scanner: Scanner) -> Policy:
    """What is asked for beyond telling the verdict."""
    wanted = (
        (Action.REJECT, ("spam",), scanner.reject_from),
        (Action.QUARANTINE, ("spam",), scanner.quarantine_from),
        (Action.DEFER, ("spam", policy.UNSURE), scanner.greylist_from),
    )
    rules = tuple(Rule(label, action, since) for action, labels, since in wanted if since is not None for label in labels)
    given = scanner.policy
    return Policy(rules, given.one_wrong_in, given.tell_probability, given.forged, given.on_error)
