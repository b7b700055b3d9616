"""What experts said of messages before these were taught, by which fusion and calibration learn. Only reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spamguard.ledger import statements
from spamguard.ledger.asking import Ask, of_digests
from spamguard.ledger.lessons import lesson
from spamguard.records import Vote

_CHUNK = 128  # events in one statement


class Scores:
    """Of a ledger. ask: runs a statement. Every method raises LedgerError."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def first(self, digests: Sequence[bytes], extractor: int) -> dict[bytes, bytes]:
        """The scores of the oldest vote in force on each of these messages that anybody teaches, of those by this extractor."""
        known = of_digests(self._ask, statements.KNOWN_DIGESTS, digests)  # hardly ever any
        return {digest: bytes(scores) for (digest,) in known for (scores,) in self._ask(statements.FIRST_SCORES, (digest, extractor))}

    def of_lessons(self, extractor: int) -> Iterator[tuple[str, bytes]]:
        """Label and first-time scores of every lesson that has any, in the order in which the messages were first heard of."""
        seq, done = 0, set[bytes]()
        ((end,),) = self._ask(statements.LAST_SEQ, ())
        repeated = {digest for (digest,) in self._ask(statements.DIGESTS_OF_SEVERAL_EVENTS, (end,))}
        while rows := self._ask(statements.SCORES_BETWEEN, (seq, end, _CHUNK)):
            seq = rows[-1][0]
            for _, digest, label, scores, version in rows:
                if digest not in repeated:
                    if label is not None and version == extractor and scores:
                        yield label, scores
                elif digest not in done:
                    done.add(digest)
                    yield from self._of_lesson(digest, extractor)

    def _of_lesson(self, digest: bytes, extractor: int) -> list[tuple[str, bytes]]:
        found = lesson([Vote(*row) for row in self._ask(statements.VOTES_OF_DIGEST, (digest,))], extractor)
        return [(found.label, found.scores)] if found is not None and found.scores else []
