"""What became of one message: one line in the log, one row in the history. Must never hold or tell any of its text but
addresses, its subject, the name in its From and the words that weighed most."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spamguard.history import Row
from spamguard.log import word
from spamguard.mail.author import author
from spamguard.mail.decode import unstructured
from spamguard.proxy.contract import NotScanned
from spamguard.proxy.groups import Group
from spamguard.records import EXTRACTOR, Scan, Verdict
from spamguard.settings import Action, Listener, Scanner
from spamguard.wire.values import Envelope, Reply

NOT_SCANNED = "not-scanned"
_RECIPIENTS = 5  # in the log line, and people who are judged otherwise; the others are counted
_WORDS = 6
_SUBJECT_BYTES = 1000
# That these begin with the end of a line makes them six times as fast as `^` does.
_SUBJECT = re.compile(rb"\nSubject[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.IGNORECASE)
_FROM = re.compile(rb"\nFrom[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.IGNORECASE)


class Entry:
    """Grows while the message passes: `judged`, `decided` or `failed`, `finish`. time: of its arrival, seconds since 1970.

    reason: why it was not scanned. verdict: what recipients are told. action: None while nothing was decided. personal: users who
    have made another decision of it than all people's, with their label. copy_of: the message, where this is but a further copy.
    queue: its name at the server that asks about it, where there is one.
    """

    def __init__(
        self, name: str, now: float, listener: Listener | Scanner, envelope: Envelope, size: int, oddities: frozenset[str]
    ) -> None:
        self.id = name
        self.listener = listener
        self.envelope = envelope
        self.size = size
        self.oddities = oddities
        self.time = now
        self.scan: Scan | None = None
        self.reason = ""  # why it was not scanned
        self.subject = self.author = ""
        self.verdict: Verdict | None = None
        self.action: Action | None = None
        self.personal: Mapping[str, str] = {}
        self.copy_of = ""
        self.queue = ""
        self.replies: Sequence[Reply] = ()
        self._started = self._judged = self._finished = time.perf_counter()

    def judged(self, found: Scan | NotScanned, header: bytes) -> None:
        """What the scorer said of it; its header section tells the subject and who wrote it."""
        self._judged = time.perf_counter()
        if isinstance(found, NotScanned):
            self.reason = found.reason
        else:
            self.scan, self.verdict = found, found.verdict
        self.subject, self.author = subject_of(header), author_of(header)

    def failed(self, reason: str) -> None:
        """It was not judged after all."""
        self.scan, self.verdict, self.action, self.personal, self.reason = None, None, None, {}, reason

    def decided(self, group: Group) -> None:
        """What is made of it for these recipients."""
        self.verdict, self.action, self.personal = group.verdict, group.decision.action, group.personal

    def copy(self, name: str, group: Group) -> Entry:
        """The same for one of several copies, that of these recipients."""
        found = copy.copy(self)
        found.id = name
        found.copy_of = self.id if name != self.id else ""
        found.envelope = replace(self.envelope, recipients=tuple(self.envelope.recipients[number] for number in group.numbers))
        found.decided(group)
        return found

    @property
    def label(self) -> str:
        """Of the verdict, or that there is none."""
        return NOT_SCANNED if self.verdict is None else self.verdict.label

    def finish(self, replies: Sequence[Reply]) -> None:
        """What came of it."""
        self.replies = replies
        self._finished = time.perf_counter()

    @property
    def judging_seconds(self) -> float:
        """From its arrival to its verdict."""
        return self._judged - self._started

    @property
    def handing_on_seconds(self) -> float:
        """From its verdict to what came of it."""
        return self._finished - self._judged

    def row(self, fingerprint: str) -> Row:
        """For the history. fingerprint: of the installation's key."""
        scan, verdict = self.scan, self.verdict
        return Row(
            id=self.id,
            time=self.time,
            listener=str(self.listener.endpoint),
            client=self.envelope.client.address,
            sender=self.envelope.sender.address,
            recipients=tuple(one.address for one in self.envelope.recipients),
            subject=self.subject,
            size=self.size,
            digest=scan.digest if scan else b"",
            label=self.label,
            probability=verdict.probability if verdict else 0.0,
            log_odds=verdict.log_odds if verdict else 0.0,
            action=self.action or "",
            reply=self._reply(),
            packed=scan.packed if scan else b"",
            words=scan.words if scan else (),
            extractor=EXTRACTOR,
            fingerprint=fingerprint,
            personal=self.personal,
            author=self.author,
        )

    def __str__(self) -> str:
        """The line: `key=value` for each fact."""
        return " ".join([f"{key}={word(value)}" for key, value in self.facts().items()])

    def facts(self) -> Mapping[str, str]:
        """What the line tells, by name; values are as strangers wrote them."""
        client = self.envelope.client
        return {
            "id": self.id,
            **({"copy-of": self.copy_of} if self.copy_of else {}),
            **({"queue": self.queue} if self.queue else {}),
            "listener": str(self.listener.endpoint),
            "client": client.address,
            "helo": client.helo,
            "from": f"<{self.envelope.sender.address}>",
            "to": self._recipients(),
            "size": str(self.size),
            **({"normalised": ",".join(sorted(self.oddities))} if self.oddities else {}),
            **self._verdict(),
            "reply": self._reply(),
            "judging": _milliseconds(self.judging_seconds),
            "handing-on": _milliseconds(self.handing_on_seconds),
        }

    def _reply(self) -> str:
        return "; ".join(dict.fromkeys(map(str, self.replies)))

    def _recipients(self) -> str:
        return _first([f"<{one.address}>" for one in self.envelope.recipients])

    def _personal(self) -> str:
        return _first([f"{user}:{label}" for user, label in self.personal.items()])

    def _verdict(self) -> Mapping[str, str]:
        if self.scan is None or self.verdict is None:
            return {"verdict": NOT_SCANNED, "reason": self.reason}
        return {
            "verdict": self.verdict.label,
            "probability": f"{self.verdict.probability:.6f}",
            **({"personal": self._personal()} if self.personal else {}),
            "action": self.action or "",
            "words": ", ".join([f"{word.text} {word.part:+.2f}" for word in self.scan.words[:_WORDS]]),
        }


def subject_of(header: bytes) -> str:
    """The subject that a header section tells, decoded, on one line; as strangers wrote it."""
    match = _SUBJECT.search(b"\n" + header)
    return " ".join(unstructured(match[1][:_SUBJECT_BYTES])[0].split()) if match else ""


def author_of(header: bytes) -> str:
    """Who a header section says has written the message, as `mail.author` has it; "" where it says nothing. Several From are one list."""
    return author(b",".join(_FROM.findall(b"\n" + header)))


def _first(texts: Sequence[str]) -> str:
    more = len(texts) - _RECIPIENTS
    return ",".join(texts[:_RECIPIENTS]) + (f",+{more}" if more > 0 else "")


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}ms"
