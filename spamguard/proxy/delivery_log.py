"""What became of one message: one line in the log, one row in the history.

Must never hold any text of a message but its addresses, its subject, the name in its From and the
words that weighed most.
"""

from __future__ import annotations

import copy
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spamguard.config.options import Action, Listener, Scanner
from spamguard.keys import RANDOM_BYTES, new_id
from spamguard.log import quote_value
from spamguard.mail.decode import decode_unstructured
from spamguard.mail.headers import format_author
from spamguard.proxy.base import NotScanned, RecipientGroup
from spamguard.proxy.history_schema import HistoryRow
from spamguard.records import EXTRACTOR, Scan, Verdict
from spamguard.smtp.envelope import Envelope, Reply

NOT_SCANNED = "not-scanned"
_MAX_LOGGED = 5  # recipients, and users with an own decision; the others are counted
_MAX_WORDS_LOGGED = 6
_MAX_SUBJECT_BYTES = 1000
# A line end at the beginning makes these six times as fast as `^` does.
_SUBJECT = re.compile(rb"\nSubject[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.IGNORECASE)
_FROM = re.compile(rb"\nFrom[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.IGNORECASE)


class DeliveryRecord:
    """Made when a message comes; `set_scan`, `set_decision` or `set_failure`, and `finish` fill it.

    id: new, as of `keys.new_id`. time: of arrival, seconds since 1970. reason: why it was not
    scanned. verdict: the one in force for these recipients. action: None before the decision.
    personal: users with a decision that differs from that for all people, each with the label.
    copy_of: the id of the message, where this is a further copy of it. queue_id: its id at the
    server that asks, if any.
    """

    def __init__(
        self,
        listener: Listener | Scanner,
        envelope: Envelope,
        size: int,
        oddities: frozenset[str] = frozenset(),
    ) -> None:
        self.time = time.time()
        self.id = new_id(self.time, os.urandom(RANDOM_BYTES))
        self.listener = listener
        self.envelope = envelope
        self.size = size
        self.oddities = oddities
        self.scan: Scan | None = None
        self.reason = ""
        self.subject = self.author = ""
        self.verdict: Verdict | None = None
        self.action: Action | None = None
        self.personal: Mapping[str, str] = {}
        self.copy_of = ""
        self.queue_id = ""
        self.replies: Sequence[Reply] = ()
        self._started_at = self._judged_at = self._finished_at = time.perf_counter()

    def set_scan(self, scan: Scan | NotScanned, header: bytes) -> None:
        """Note the judge's answer, and subject and author from the header section."""
        self._judged_at = time.perf_counter()
        if isinstance(scan, NotScanned):
            self.reason = scan.reason
        else:
            self.scan, self.verdict = scan, scan.verdict
        self.subject, self.author = decode_subject(header), decode_author(header)

    def set_failure(self, reason: str) -> None:
        """Note that the message was not judged after all."""
        self.scan = self.verdict = self.action = None
        self.personal, self.reason = {}, reason

    def set_decision(self, group: RecipientGroup) -> None:
        """Note the decision for these recipients."""
        self.verdict, self.personal = group.verdict, group.personal
        self.action = group.decision.action

    def split(self, groups: Sequence[RecipientGroup]) -> list[DeliveryRecord]:
        """One record for each group's copy of the message.

        The first keeps the id. Further copies have ids of their own: an id is signed for one
        verdict, and names one file of the quarantine.
        """
        records = [self] if len(groups) == 1 else [copy.copy(self) for _ in groups]
        for group, record in zip(groups, records, strict=True):
            record.set_decision(group)
            if record is not self:
                recipients = [self.envelope.recipients[index] for index in group.indices]
                record.envelope = replace(self.envelope, recipients=tuple(recipients))
        for record in records[1:]:
            record.id, record.copy_of = new_id(self.time, os.urandom(RANDOM_BYTES)), self.id
        return records

    def finish(self, replies: Sequence[Reply]) -> None:
        """Note the final replies."""
        self.replies = replies
        self._finished_at = time.perf_counter()

    @property
    def label(self) -> str:
        """The label of the verdict, or `NOT_SCANNED`."""
        return NOT_SCANNED if self.verdict is None else self.verdict.label

    @property
    def judging_seconds(self) -> float:
        """From arrival to verdict."""
        return self._judged_at - self._started_at

    @property
    def delivery_seconds(self) -> float:
        """From verdict to final reply."""
        return self._finished_at - self._judged_at

    def row(self, fingerprint: str) -> HistoryRow:
        """The row of the history. fingerprint: of the installation's key."""
        scan, verdict = self.scan, self.verdict
        return HistoryRow(
            id=self.id,
            time=self.time,
            listener=str(self.listener.listen),
            client=self.envelope.client.address,
            sender=self.envelope.sender.address,
            recipients=tuple(recipient.address for recipient in self.envelope.recipients),
            subject=self.subject,
            size=self.size,
            digest=scan.digest if scan else b"",
            label=self.label,
            probability=verdict.probability if verdict else 0.0,
            log_odds=verdict.log_odds if verdict else 0.0,
            action=self.action or "",
            reply=self._reply_text(),
            packed=scan.packed if scan else b"",
            words=scan.words if scan else (),
            extractor=EXTRACTOR,
            fingerprint=fingerprint,
            personal=self.personal,
            author=self.author,
        )

    def __str__(self) -> str:
        """The log line: `key=value` for each fact."""
        return " ".join([f"{key}={quote_value(value)}" for key, value in self.facts().items()])

    def facts(self) -> Mapping[str, str]:
        """The facts of the log line by name; the values are as strangers wrote them."""
        client = self.envelope.client
        recipients = [f"<{recipient.address}>" for recipient in self.envelope.recipients]
        return {
            "id": self.id,
            **({"copy-of": self.copy_of} if self.copy_of else {}),
            **({"queue": self.queue_id} if self.queue_id else {}),
            "listener": str(self.listener.listen),
            "client": client.address,
            "helo": client.helo,
            "from": f"<{self.envelope.sender.address}>",
            "to": _join_first(recipients),
            "size": str(self.size),
            **({"normalised": ",".join(sorted(self.oddities))} if self.oddities else {}),
            **self._verdict_facts(),
            "reply": self._reply_text(),
            "judging": f"{1000 * self.judging_seconds:.1f}ms",
            "handing-on": f"{1000 * self.delivery_seconds:.1f}ms",
        }

    def _verdict_facts(self) -> Mapping[str, str]:
        if self.scan is None or self.verdict is None:
            return {"verdict": NOT_SCANNED, "reason": self.reason}
        personal = [f"{user}:{label}" for user, label in self.personal.items()]
        words = [f"{word.text} {word.part:+.2f}" for word in self.scan.words[:_MAX_WORDS_LOGGED]]
        return {
            "verdict": self.verdict.label,
            "probability": f"{self.verdict.probability:.6f}",
            **({"personal": _join_first(personal)} if personal else {}),
            "action": self.action or "",
            "words": ", ".join(words),
        }

    def _reply_text(self) -> str:
        return "; ".join(dict.fromkeys(map(str, self.replies)))


def decode_subject(header: bytes) -> str:
    """The subject in a header section, decoded, on one line; not made printable.

    >>> decode_subject(b"Subject: =?utf-8?q?gr=C3=BC=C3=9Fe?=\\r\\n")
    'grüße'
    """
    match = _SUBJECT.search(b"\n" + header)
    return " ".join(decode_unstructured(match[1][:_MAX_SUBJECT_BYTES])[0].split()) if match else ""


def decode_author(header: bytes) -> str:
    """The author in a header section, as `mail.headers.format_author` writes it; "" without From.

    Several From fields count as one list.
    """
    return format_author(b",".join(_FROM.findall(b"\n" + header)))


def _join_first(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_LOGGED
    return ",".join(texts[:_MAX_LOGGED]) + (f",+{more}" if more > 0 else "")
