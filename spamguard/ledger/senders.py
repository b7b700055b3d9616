"""What users say of senders: "mail from this address is wanted", or unwanted, and how strongly.

Such a word is a vote like any other, about an address instead of a message: its digest is a keyed
hash of the address, its label says by how many nats it moves the log-odds of being unwanted, and
its extractor version is one that no reader of lessons asks for. A word about everybody at a
registered domain is the same, with the domain for the address. `SenderWords` looks words up for
mail whose sender is authenticated (`mail.authentication`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from spamguard.keys import derive_key
from spamguard.ledger.votes import SENDER_LABEL, SENDER_VERSION, NewVote
from spamguard.mail.authentication import authenticated_sender
from spamguard.mail.headers import registered_part
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


def sender_domain(address: str) -> str:
    """The registered domain of an address, or of a host.

    >>> sender_domain("news@mail.shop.co.uk"), sender_domain("shop.example")
    ('shop.co.uk', 'shop.example')
    """
    return registered_part(address.rpartition("@")[2].encode("utf-8", "replace")).decode()


def split_sender(sender: bytes) -> list[bytes]:
    """The digests in what `SenderWords.identify` gives: of the address and of its domain, which
    older rows of the history do not have.
    """
    return [sender[start : start + DIGEST_BYTES] for start in range(0, len(sender), DIGEST_BYTES)]


class SenderWord(NamedTuple):
    """What counts of all that was said."""

    nats: int = 0  # added to the log-odds of being unwanted
    of_domain: bool = False  # it is about everybody at the domain


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

    def digest(self, name: str) -> bytes:
        """The digest of words about an address, or about everybody at a domain."""
        text = name.lower().encode("utf-8", "replace")
        size = DIGEST_BYTES - len(SENDER_PREFIX)
        return SENDER_PREFIX + blake2b(text, key=self._key, digest_size=size).digest()

    def identify(self, raw: bytes) -> bytes:
        """The digests of a message's sender and its domain, if a server that is believed has
        authenticated it; else b"".
        """
        if not self.authserv_ids:
            return b""
        address = authenticated_sender(
            raw, self.authserv_ids, results_stripped=self.results_stripped
        )
        return self.digest(address) + self.digest(sender_domain(address)) if address else b""

    def find(self, sender: bytes, users: Iterable[str]) -> dict[str, SenderWord]:
        """What counts in the mail of each of these users: the user's own word, or else that of the
        site (user ""); of each, that about the address, or else that about its domain.

        sender: of `identify`.
        """
        digests = split_sender(sender)
        if not digests or not self._ledger.has_digest_between(*_DIGEST_RANGE):
            return dict.fromkeys(users, SenderWord())
        of_site = self._load(digests, "")
        return {user: self._load(digests, user) or of_site or SenderWord() for user in users}

    def _load(self, digests: list[bytes], user: str) -> SenderWord | None:
        """This user's own word."""
        for digest, of_domain in zip(digests, (False, True), strict=False):
            word = self._ledger.get_vote(digest, user)
            if nats := label_nats(word and word.label):
                return SenderWord(nats, of_domain)
        return None
