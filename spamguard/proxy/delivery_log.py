"""What becomes of a message, for each copy of it: a line in the log, a row of history.

A recipient whose user has taught otherwise may get another verdict: `decide_copies` gives the
recipients of each decision a copy. A `DeliveryRecord` says what became of one copy. `HistoryWriter`
writes rows beside the path of the mail, in a thread of its own: rows that do not fit into its
queue, or cannot be written, are dropped and counted.

Must never leave a recipient out or give one two copies, treat a recipient more harshly than the
mildest verdict of those with the same copy, keep the mail waiting or raise into its path, or hold
any text of a message but its addresses, its subject, the name in its From, the words that weighed
most and a line of its text.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from spamguard.config.options import Action, Listener, Policy, Rule, Scanner
from spamguard.engine.policy import Decision, decide
from spamguard.keys import RANDOM_BYTES, new_id
from spamguard.log import WarnOnce, message_name, quote_value
from spamguard.mail.decode import decode_unstructured
from spamguard.mail.headers import format_author
from spamguard.proxy.history import History, HistoryRow, RowValues, row_values
from spamguard.records import EXTRACTOR, Scan, Verdict
from spamguard.smtp.envelope import Envelope, Reply

_log = logging.getLogger("spamguard.history")

NOT_SCANNED = "not-scanned"
# Words of the subject and of header fields, which nearly all hold addresses.
_PRIVATE_WORD = re.compile("(?!(?:footer|end|url|host|tags|hidden|attachment|clue|names):)[^:]+:")
_OPTIONAL_FACTS = ("copy-of", "queue", "message", "normalised", "personal")
_MAX_LOGGED = 5  # recipients, and users with an own decision; the others are counted
# A line end at the beginning makes these six times as fast as `^` does.
_SUBJECT = re.compile(rb"\nSubject[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.IGNORECASE)
_FROM = re.compile(rb"\nFrom[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.IGNORECASE)


class Copy(NamedTuple):
    """The message as some recipients get it."""

    recipients: Sequence[int]  # their indices in the envelope, from 0, in order
    scan: Scan
    verdict: Verdict  # the mildest of those for these recipients
    decision: Decision
    # Users among them with a decision that differs from that for all people, with the own label.
    personal: Mapping[str, str] = {}


def decide_copies(
    scan: Scan, users: Sequence[str], policy: Policy, *, separate_copies: bool
) -> list[Copy]:
    """The copies; the first is that of recipients judged as for all people.

    Parameters
    ----------
    users
        For each recipient a user in `scan.personal`, or "".
    separate_copies
        Whether recipients can get different copies. Otherwise there is one, and the mildest of
        their verdicts decides.
    """
    verdicts = {"": scan.verdict, **scan.personal}
    decisions = {user: decide(it, policy, scan.threshold) for user, it in verdicts.items()}
    if not any(users):
        return [Copy(range(len(users)), scan, scan.verdict, decisions[""])]
    keys = {user: (verdicts[user].label, decisions[user].rule) for user in verdicts}
    members: dict[tuple[str, Rule | None], list[int]] = {keys[""]: []}
    for index, user in enumerate(users):
        members.setdefault(keys[user if separate_copies else ""], []).append(index)
    copies = []
    for recipients in filter(None, members.values()):
        group = dict.fromkeys(users[index] for index in recipients)
        mildest = min(group, key=lambda user: verdicts[user].probability)
        if keys[mildest] == keys[""]:
            mildest = ""
        personal = {user: verdicts[user].label for user in group if keys[user] != keys[""]}
        copies.append(Copy(recipients, scan, verdicts[mildest], decisions[mildest], personal))
    return copies


@dataclass(eq=False)
class DeliveryRecord:
    """Made when a message comes; `set_judged`, `split` or `set_failure`, and `finish` fill it.

    The record has a new id, as of `keys.new_id`, and the time of arrival in seconds since 1970.
    """

    listener: Listener | Scanner
    envelope: Envelope
    size: int
    oddities: frozenset[str] = frozenset()
    reason: str = ""  # why the message was not scanned
    subject: str = ""
    author: str = ""
    copy: Copy | None = None  # this and the action are None before the decision
    action: Action | None = None
    copy_of: str = ""  # the id of the message, where this is a further copy of it
    queue_id: str = ""  # of the message at the server that asks, if any
    replies: Sequence[Reply] = ()
    judging_seconds: float = 0.0  # from arrival to verdict
    delivery_seconds: float = 0.0  # from there to the final reply

    def __post_init__(self) -> None:
        self.time = time.time()
        self.id = new_id(self.time, os.urandom(RANDOM_BYTES))
        self._started_at = time.perf_counter()

    def set_judged(self, header: bytes) -> None:
        """Note that the judge has answered, and subject and author from the header section."""
        self.judging_seconds = time.perf_counter() - self._started_at
        self.subject, self.author = decode_subject(header), decode_author(header)

    def set_failure(self, reason: str) -> None:
        """Note that the message was not judged, or not after all."""
        self.copy = self.action = None
        self.reason = reason

    def split(self, copies: Sequence[Copy]) -> list[DeliveryRecord]:
        """One record for each copy of the message.

        The first keeps the id. Further copies have ids of their own: an id is signed for one
        verdict, and names one file of the quarantine.
        """
        records = [self] if len(copies) == 1 else [shallow_copy(self) for _ in copies]
        for group, record in zip(copies, records, strict=True):
            record.copy, record.action = group, group.decision.action
            if record is not self:
                recipients = [self.envelope.recipients[index] for index in group.recipients]
                record.envelope = replace(self.envelope, recipients=tuple(recipients))
        for record in records[1:]:
            record.id, record.copy_of = new_id(self.time, os.urandom(RANDOM_BYTES)), self.id
        return records

    def finish(self, replies: Sequence[Reply]) -> None:
        self.replies = replies
        self.delivery_seconds = time.perf_counter() - self._started_at - self.judging_seconds

    @property
    def label(self) -> str:
        """The label of the verdict, or `NOT_SCANNED`."""
        return self.copy.verdict.label if self.copy else NOT_SCANNED

    def row(self, fingerprint: str) -> HistoryRow:
        """The row of the history, with the fingerprint of the installation's key."""
        copy = self.copy
        scan = copy.scan if copy else None
        return HistoryRow(
            id=self.id,
            time=self.time,
            listener=self.listener.listen.text,
            client=self.envelope.client.address,
            sender=self.envelope.sender.address,
            recipients=tuple(recipient.address for recipient in self.envelope.recipients),
            subject=self.subject,
            size=self.size,
            digest=scan.digest if scan else b"",
            label=self.label,
            probability=copy.verdict.probability if copy else 0.0,
            log_odds=copy.verdict.log_odds if copy else 0.0,
            action=self.action or "",
            reply=self._reply_text(),
            packed=scan.packed if scan else b"",
            words=scan.words if scan else (),
            extractor=EXTRACTOR,
            fingerprint=fingerprint,
            personal=copy.personal if copy else {},
            author=self.author,
            sender_digest=scan.sender if scan else b"",
            line=scan.line if scan else "",
        )

    def __str__(self) -> str:
        """The log line: `key=value` for each fact."""
        return " ".join([f"{key}={quote_value(value)}" for key, value in self.facts().items()])

    def facts(self) -> Mapping[str, str]:
        """The facts of the log line by name; the values are as strangers wrote them."""
        client, envelope = self.envelope.client, self.envelope
        facts = {
            "id": self.id,
            "copy-of": self.copy_of,
            "queue": self.queue_id,
            "message": message_name(self.copy.scan.digest) if self.copy else "",
            "listener": self.listener.listen.text,
            "client": client.address,
            "helo": client.helo,
            "from": f"<{envelope.sender.address}>",
            "to": _join_first([f"<{recipient.address}>" for recipient in envelope.recipients]),
            "size": str(self.size),
            "normalised": ",".join(sorted(self.oddities)),
            **self._verdict_facts(),
            "reply": self._reply_text(),
            "judging": f"{1000 * self.judging_seconds:.1f}ms",
            "handing-on": f"{1000 * self.delivery_seconds:.1f}ms",
        }
        return {key: value for key, value in facts.items() if value or key not in _OPTIONAL_FACTS}

    def _verdict_facts(self) -> Mapping[str, str]:
        copy = self.copy
        if copy is None:
            return {"verdict": NOT_SCANNED, "reason": self.reason}
        return {
            "verdict": copy.verdict.label,
            "probability": f"{copy.verdict.probability:.6f}",
            "personal": _join_first([f"{user}:{label}" for user, label in copy.personal.items()]),
            "action": self.action or "",
            "words": ", ".join([f"{word.text} {word.part:+.2f}" for word in copy.scan.words[:6]]),
        }

    def _reply_text(self) -> str:
        return "; ".join(dict.fromkeys(map(str, self.replies)))


def decode_subject(header: bytes) -> str:
    """The subject in a header section, decoded, on one line; not made printable.

    >>> decode_subject(b"Subject: =?utf-8?q?gr=C3=BC=C3=9Fe?=\\r\\n")
    'grüße'
    """
    match = _SUBJECT.search(b"\n" + header)
    return " ".join(decode_unstructured(match[1][:1000])[0].split()) if match else ""


def decode_author(header: bytes) -> str:
    """The author in a header section, as `mail.headers.format_author` writes it; "" without From.

    Several From fields count as one list.
    """
    return format_author(b",".join(_FROM.findall(b"\n" + header)))


def _join_first(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_LOGGED
    return ",".join(texts[:_MAX_LOGGED]) + (f",+{more}" if more > 0 else "")


# ---- the writer

_MAX_QUEUE_BYTES = 32 << 20
_ROW_BYTES = 4096  # of a row without its features


class HistoryWriter:
    """Takes rows from any thread, and counts those that it drops. Start it after the last fork.

    Parameters
    ----------
    path, size, days
        As in `History.open`.
    private
        Whether rows are kept only as `redact_row` leaves them.
    """

    def __init__(self, path: Path, size: int, days: int, *, private: bool = False) -> None:
        self._open_arguments = path, size, days
        self._private = private
        self._rows: list[RowValues] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._trouble = WarnOnce(_log, logging.ERROR)
        self.dropped = 0
        # A daemon thread: a hanging disk must not keep the process.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def put(self, row: HistoryRow) -> bool:
        """Have a row written soon; False if it is dropped for want of room. Never waits.

        The row is encoded here: the thread would hold the interpreter lock for it, and the mail
        would wait.
        """
        values = row_values(redact_row(row) if self._private else row)
        size = len(row.packed) + _ROW_BYTES
        with self._lock:
            if self._closing.is_set() or self._bytes + size > _MAX_QUEUE_BYTES:
                self.dropped += 1
                self._trouble.report("the disk is too slow for the history")
                return False
            self._rows.append(values)
            self._bytes += size
        return True

    def close(self, seconds: float = 5.0) -> bool:
        """Write the waiting rows and end; whether that was done within so many seconds.

        Idempotent; later rows are dropped.
        """
        self._closing.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        batch = self._next_batch()
        while batch:
            try:
                with History.open(*self._open_arguments) as history:
                    while batch:
                        history.append_values(batch)
                        self._trouble.clear()
                        batch = self._next_batch()
            except Exception as error:  # noqa: BLE001  whatever it is, mail goes on
                with self._lock:
                    self.dropped += len(batch)
                    self._trouble.report("%s", error)
                # The next batch opens it anew: the file may have been moved away, or mended.
                batch = self._next_batch()

    def _next_batch(self) -> list[RowValues]:
        """Rows that have come together within half a second; none at the end."""
        while not self._closing.wait(0.5) and not self._rows:
            pass
        with self._lock:
            batch, self._rows, self._bytes = self._rows, [], 0
        return batch


def redact_row(row: HistoryRow) -> HistoryRow:
    """The row without its subject, the line of its text, addresses, and the words of them.

    Addresses are those of sender, author, recipients, users and client, and the text of the next
    hop's reply behind its code.
    """
    return replace(
        row,
        words=tuple(word for word in row.words if not _PRIVATE_WORD.match(word.text)),
        subject="",
        line="",
        sender="",
        sender_digest=b"",
        author="",
        recipients=(),
        client="",
        reply=row.reply[:3],
        personal={},
    )
