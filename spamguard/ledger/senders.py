"""What users say of senders: "mail from this address is wanted", or unwanted, and how strongly.

Such a word is a vote like any other, about an address instead of a message: its digest is a keyed
hash of the address, its label says by how many nats it moves the log-odds of being unwanted, and
its extractor version is one that no reader of lessons asks for. `SenderWords` looks words up for
mail whose sender is authenticated (`mail.authentication`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING

from spamguard.keys import derive_key
from spamguard.ledger.votes import SENDER_LABEL, SENDER_VERSION, NewVote
from spamguard.mail.authentication import authenticated_sender
from spamguard.records import DIGEST_BYTES, SENDER_PREFIX

if TYPE_CHECKING:
    from spamguard.ledger.sqlite import SqliteLedger

_DIGEST_RANGE = (SENDER_PREFIX, b"sne")  # the index tells whether there is any word at all


def make_sender_vote(digest: bytes, user: str, nats: int | None, origin: str, time: int) -> NewVote:
    """The vote that says what a user thinks of a sender.

    digest: of the sender. nats: added to the log-odds of being unwanted; None: the word is taken
    back.
    """
    label = None if nats is None else f"(sender {nats:+d})"
    return NewVote(digest, user, label, b"", b"", origin, time, SENDER_VERSION)


def label_nats(label: str | None) -> int:
    """What a word with this label adds to the log-odds of being unwanted; 0 if it is none.

    >>> label_nats("(sender -6)"), label_nats("spam")
    (-6, 0)
    """
    match = SENDER_LABEL.fullmatch(label or "")
    return int(match[1]) if match else 0


def label_class(label: str | None) -> str:
    """What a word with this label calls the sender's mail: ham or spam; "" if it is none.

    >>> label_class("(sender -6)"), label_class("(sender +3)"), label_class("spam")
    ('ham', 'spam', '')
    """
    nats = label_nats(label)
    return "" if not nats else "ham" if nats < 0 else "spam"


class SenderWords:
    """The words of a ledger, by user and sender.

    key: the installation's. authserv_ids, results_stripped: as of `authenticated_sender`, the names
    in any case.
    """

    def __init__(
        self,
        ledger: SqliteLedger,
        key: bytes,
        authserv_ids: Collection[str],
        *,
        results_stripped: bool = False,
    ) -> None:
        self.authserv_ids = frozenset(name.lower() for name in authserv_ids)
        self.results_stripped = results_stripped
        self._ledger = ledger
        self._key = derive_key(key, b"senders")

    def digest(self, address: str) -> bytes:
        """The digest of words about an address."""
        text = address.lower().encode("utf-8", "replace")
        size = DIGEST_BYTES - len(SENDER_PREFIX)
        return SENDER_PREFIX + blake2b(text, key=self._key, digest_size=size).digest()

    def identify(self, raw: bytes) -> bytes:
        """The digest of a message's sender, if a server that is believed has authenticated it; else
        b"".
        """
        if not self.authserv_ids:
            return b""
        address = authenticated_sender(
            raw, self.authserv_ids, results_stripped=self.results_stripped
        )
        return self.digest(address) if address else b""

    def find(self, digest: bytes, users: Iterable[str]) -> Counter[str]:
        """What a word about an authenticated sender adds in the mail of each of these users: the
        user's own, or else that of the site (user ""), or else 0.

        digest: of `identify`.
        """
        if not digest or not self._ledger.has_digest_between(*_DIGEST_RANGE):
            return Counter()
        of_site = self._load(digest, "")
        return Counter({user: self._load(digest, user) or of_site for user in users})

    def _load(self, digest: bytes, user: str) -> int:
        """What this user's own word adds; 0: there is none."""
        return label_nats(self._ledger.standing_label(digest, user))
