"""Judge, learn, forget, explain: the only thing that doors and commands talk to.

`judge` and `explain` never write. Every change is one transaction on the ledger; the tables follow from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from spamguard import policy, secret
from spamguard.bayes import blocks, experts, explanation, personal
from spamguard.bayes.explanation import dissect
from spamguard.bayes.profiles import DEFAULT, PROFILES, fuse_all, fused
from spamguard.bayes.sides import merged
from spamguard.bayes.tables import BASE_CLASSES, DEFAULT_BITS, Evidence, evidence
from spamguard.errors import UnknownClassError, UsageError
from spamguard.files import KEY, LEDGER
from spamguard.ledger import NewVote, SqliteLedger, codec
from spamguard.model import firstscores, goodmail, loss, snapshot, status, verdicts
from spamguard.model.directory import BITS, is_new, least_bits
from spamguard.model.loss import Loss
from spamguard.model.personal import People
from spamguard.model.store import TableStore
from spamguard.prepare import Preparer, Teaching, chunks, message
from spamguard.records import EXTRACTOR, Explanation, Features, Scan, Status, Verdict
from spamguard.teaching.lesson import NO_CLASSES, is_class

# Settling is due after so many events and such a share of all lessons (corpora/RESULTS.md, "How often to settle"): the
# cost of each lesson stays the same however many there are.
_SETTLE_AFTER = 10
_SETTLE_SHARE = 0.1
_TAKEN_BACK = 20  # lessons: so many is one that was taken back, for its step leaves something behind (corpora/RESULTS.md, "Taking back")
_ADOPTED = "adopted"  # the ledger's note that the tables came without receipts


class Filter:
    """A spam filter in a directory of its own. Belongs to one process and thread; open another in each."""

    def __init__(self, directory: Path, key: bytes, ledger: SqliteLedger, store: TableStore, profile: str, one_wrong_in: int) -> None:
        """Use `open`."""
        self.directory = directory
        self._ledger = ledger
        self._store = store
        self._people = People(ledger)
        self._profile = PROFILES[profile]
        self.key = key
        self._preparer = Preparer(key)
        self._one_wrong_in = one_wrong_in
        self._read_rules()
        self._known = experts.parameters(store.tables, self._unwanted)
        self._known_for = store.tables, store.tables.changes, self._unwanted
        self._caution = self._caution_now()

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        profile: str = DEFAULT,
        bits: int = DEFAULT_BITS,
        durable: bool = True,
        load: bool = True,
        one_wrong_in: int = 0,
    ) -> Filter:
        """The filter in `directory`, created when new.

        profile: how to judge, a name of `bayes.profiles.PROFILES`. bits: of a new filter, 2**bits buckets in its tables until they grow.
        durable: lessons survive a power cut. load: map the tables; without, only `settle` makes sense (they are damaged).
        one_wrong_in: call spam what is wrong about at most one good message in so many, where that is known (`threshold`).
        LedgerError, TableError: the directory cannot be used; UsageError: no such profile.
        """
        if profile not in PROFILES:
            raise UsageError(f"no profile {profile!r}: choose one of {', '.join(PROFILES)}")
        if bits not in BITS:
            raise UsageError(f"tables of 2**{bits} buckets: choose between 2**{min(BITS)} and 2**{max(BITS)}")
        place = Path(directory).absolute()  # wherever this process goes
        file = place / LEDGER
        key = secret.load(place / KEY, create=is_new(place, file))
        ledger = SqliteLedger.open(file, secret.fingerprint(key), durable=durable)
        try:
            store = TableStore(place, ledger, least_bits(ledger, bits), durable=durable)
            if load:
                store.catch_up()
            return cls(place, key, ledger, store, profile, one_wrong_in)
        except BaseException:
            ledger.close()
            raise

    def close(self) -> None:
        """Give the files back."""
        self._ledger.close()

    def __enter__(self) -> Filter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Judging

    def judge(self, raw: bytes, *, user: str = "") -> Verdict:
        """What the filter thinks of one message (bytes of RFC 5322); never writes, never raises on bad mail.

        user: whose mail it is, so that what this user has said weighs more; "": what all have said.
        LedgerError, TableError: the directory is damaged, or used from another thread or process; TypeError: raw is no bytes.
        """
        return self.judge_features(self._read(raw), user)

    def judge_all(self, messages: Iterable[bytes], *, user: str = "") -> Iterator[Verdict]:
        """The verdicts of many messages, in order: some are read ahead and judged together, which costs each of them less."""
        for some in chunks(messages, message):
            if self._profile.words_only:
                yield from map(self.judge_features, self._preparer.extractor.read_words(some))
                continue
            features = [found.features for found in self._preparer.extractor.read(some)]
            together = self._profile.name == DEFAULT and not user
            yield from self._judge_together(features) if together else (self.judge_features(one, user) for one in features)

    def _judge_together(self, messages: list[Features]) -> Iterator[Verdict]:
        """As `judge_features` for each: what is taught meanwhile is in force from the next message on."""
        self._refresh()
        tables, known = self._store.tables, self._parameters()
        if self._caution:
            yield from map(self.judge_features, messages)
            return
        judged = fuse_all(tables, known, blocks.side_by_side(messages, tables.bits))
        for number, found in enumerate(judged):
            self._refresh()
            if self._parameters() is not known:
                yield from map(self.judge_features, messages[number:])
                return
            yield self._verdict(found, self._spam_from)

    def judge_features(self, features: Features, user: str = "") -> Verdict:
        """The same for a message that was read already."""
        self._refresh()
        seen = evidence(features, self._store.tables.bits)
        self._parameters()  # brings the caution up to date
        if self._said(user) is None and not self._caution:
            return self._verdict(self._judgement(seen), self._spam_from)
        weighed, joint = self._weigh(seen)
        own = self._corrections([user], seen, weighed).get(user)
        return self._verdict(own.added(joint) if own else joint, self._needed(weighed, seen))

    def scan(self, raw: bytes, words: int = 8, on_top: bytes = b"", users: Sequence[str] = ()) -> Scan:
        """The verdict of `judge`, and what is kept of a message once it is gone.

        words: so many of the strongest each way, with the default profile only. on_top: as in `Preparer.named`. users: whose mail
        it is; those of them who have said anything that counts get a verdict of their own, with the default profile only.
        """
        found, named = self._preparer.named(raw, on_top)
        self._refresh()
        tables, known = self._store.tables, self._parameters()
        seen = evidence(found.features, tables.bits)
        if self._profile.name == DEFAULT:
            weighed, joint = self._weigh(seen)
            spam_from = self._needed(weighed, seen)
            verdict, own = self._verdict(joint, spam_from), self._corrections(users, seen, weighed)
            by_user = {user: self._verdict(correction.added(joint), spam_from) for user, correction in own.items()}
            parts = explanation.bucket_parts(weighed, tables, known, seen, *self._sides(verdict))
            chosen = explanation.strongest(parts, words)
            told = named.words(seen.buckets.take(chosen), parts.take(chosen), 32 - tables.bits)
        else:
            spam_from = self._spam_from
            verdict, told, by_user = self._verdict(self._judgement(seen), spam_from), (), {}
        return Scan(verdict, found.digest, codec.pack(found.features), told, spam_from, self.settling_due(), by_user)

    def _weigh(self, seen: Evidence) -> tuple[explanation.Weighed, list[float]]:
        """The judgement of the default profile, and what it went through."""
        tables, known = self._store.tables, self._parameters()
        weighed = explanation.weigh(tables, known, seen)
        return weighed, fused(tables, known, weighed.scores)

    def _corrections(self, users: Sequence[str], seen: Evidence, weighed: explanation.Weighed) -> dict[str, personal.Correction]:
        """What those users who have said anything that counts change about that judgement."""
        said = {user: found for user in users if (found := self._said(user)) is not None}
        if not said:
            return {}
        tables = self._store.tables
        shared = personal.frequencies(tables, weighed.rows.counts)
        return {user: personal.correct(own, tables.classes, seen, shared) for user, own in said.items()}

    def _said(self, user: str) -> personal.Said | None:
        if not user or self._profile.name != DEFAULT:
            return None
        return self._people.said(user, self._store.seq, self._store.tables.bits)

    def _sides(self, verdict: Verdict) -> tuple[int, int]:
        """Numbers of the likeliest unwanted class and the likeliest wanted one."""
        index = self._store.tables.classes.index
        favoured, against = verdicts.sides(verdict, self._unwanted)
        return index(favoured), index(against)

    def explain(self, raw: bytes, *, user: str = "") -> Explanation:
        """Why: the parts that sum to the log-odds. UsageError with a profile other than the default. user: as in `judge`."""
        extractor = self._preparer.extractor
        return self.explain_features(extractor.features(message(raw)), extractor.texts(raw), user)

    def explain_features(self, features: Features, texts: Mapping[int, str], user: str = "") -> Explanation:
        """The same for a message that was read already. texts: of those tokens whose text is known; a clue without one has "" there."""
        if self._profile.name != DEFAULT:
            raise UsageError("explanations are of the default profile: leave --profile out")
        self._refresh()
        tables, known = self._store.tables, self._parameters()
        seen = evidence(features, tables.bits)
        weighed, joint = self._weigh(seen)
        own = self._corrections([user], seen, weighed).get(user)
        spam_from = self._needed(weighed, seen)
        verdict = self._verdict(own.added(joint) if own else joint, spam_from)
        favoured, against = self._sides(verdict)
        found = dissect(weighed, tables, known, seen, favoured, against)
        parts, cautious = verdicts.Found(seen, found, own), spam_from > self._spam_from
        return verdicts.explanation(tables, verdict, self._unwanted, spam_from, parts, texts, cautious=cautious)

    def _refresh(self) -> None:
        """Take in what was committed, lessons and classes, here or elsewhere."""
        if self._store.refresh():
            self._read_rules()

    def _parameters(self) -> experts.Parameters:
        """The same object for as long as nothing changes."""
        tables, (before, changes, unwanted) = self._store.tables, self._known_for
        if before is not tables or changes != tables.changes or unwanted != self._unwanted:
            self._known, self._known_for = experts.parameters(tables, self._unwanted), (tables, tables.changes, self._unwanted)
            self._caution = self._caution_now()
        return self._known

    def _caution_now(self) -> policy.Caution | None:
        """What the label spam needs besides its threshold; other profiles have no experts of words to ask."""
        if self._profile.name != DEFAULT:
            return None
        good = int(merged(self._store.tables.messages, self._known.sides)[0])
        return policy.caution(good, self._known.confidence)

    def _needed(self, weighed: explanation.Weighed, seen: Evidence) -> float:
        """Probability from which on this message is called spam."""
        if not self._caution:
            return self._spam_from
        text, unknown = experts.familiarity(weighed.rows.counts, weighed.scores, seen)
        return max(self._spam_from, self._caution.spam_from(text, unknown))

    def _read(self, raw: bytes) -> Features:
        return self._preparer.extractor.words(message(raw)) if self._profile.words_only else self._preparer.judged(raw)

    def _judgement(self, seen: Evidence) -> list[float]:
        return self._profile.judge(self._store.tables, self._parameters(), seen)

    def _verdict(self, joint: list[float], spam_from: float) -> Verdict:
        return verdicts.verdict(self._store.tables, joint, self._unwanted, spam_from)

    # Teaching

    def learn(self, raw: bytes, label: str, *, user: str = "", origin: str = "api") -> bool:
        """Teach one message; whether that changed anything (teaching the same again is a success that changes nothing).

        label: a class; a new name makes one, of wanted mail (else `define_class`). user: whose word it is; "": nobody's in particular.
        Now and then it settles, at a cost that does not grow with their number; `learn_ready` leaves that to whoever teaches many.
        UnknownClassError: no name of a class, or a slip. LedgerError: not taught. TableError: taught, but tables cannot be written.
        """
        changed = self.learn_ready([self._preparer.ready(raw)], label, user=user, origin=origin)[0]
        self.settle_if_due()
        return changed

    def forget(self, raw: bytes, *, user: str = "", origin: str = "api") -> bool:
        """Take back what this user has taught about one message; whether there was anything to take back. Errors: as `learn`."""
        changed = self.forget_ready([self._preparer.digest(raw)], user=user, origin=origin)[0]
        self.settle_if_due()
        return changed

    def learn_ready(self, lessons: Sequence[Teaching], label: str, *, user: str = "", origin: str = "api") -> list[bool]:
        """Teach several messages in one transaction; for each, whether it changed anything."""
        return self.cast(self.new_votes(lessons, label, user=user, origin=origin))

    def new_votes(self, lessons: Sequence[Teaching], label: str, *, user: str = "", origin: str = "api") -> list[NewVote]:
        """The votes that teach these messages, for `cast`. A class that is new becomes known; nothing else changes."""
        self._refresh()
        self.check_class(label)
        self.make_known(label)
        now = int(time.time())
        return [
            NewVote(one.digest, user, label, codec.pack(one.features), scores, origin, now, EXTRACTOR)
            for one, scores in zip(lessons, self.first_scores(lessons), strict=True)
        ]

    def forget_ready(self, digests: Sequence[bytes], *, user: str = "", origin: str = "api") -> list[bool]:
        """Take back what was taught about several messages (`Preparer.digest`), in one transaction; for each, whether anything was."""
        return self.cast([NewVote(name, user, None, b"", b"", origin, int(time.time()), EXTRACTOR) for name in digests])

    def first_scores(self, lessons: Sequence[Teaching]) -> list[bytes]:
        """What the experts said before each message was taught: kept in its receipt, the truth about how good they are.

        Of a message that is taught already, whatever as and by whomever: what they said of it then.
        """
        if not lessons:
            return []
        placed = blocks.side_by_side([one.features for one in lessons], self._store.tables.bits)
        now = blocks.scores(self._store.tables, self._parameters(), placed)
        then = self._ledger.scores.first([one.digest for one in lessons], EXTRACTOR)
        classes = self._store.tables.classes
        return [then[one.digest] if one.digest in then else firstscores.packed(row, classes) for one, row in zip(lessons, now, strict=True)]

    def cast(self, votes: Sequence[NewVote], *, unless_voted_since: int | None = None) -> list[bool]:
        """Cast votes in one transaction; for each, whether it changed anything. unless_voted_since: as in `SqliteLedger.append`."""
        if not all(isinstance(vote.user, str) for vote in votes):
            raise TypeError("the name of a user is a str, and empty for what is nobody's in particular")
        self.refuse_without_receipts()
        changed = self._ledger.append(votes, unless_voted_since=unless_voted_since)
        self._refresh()
        self._store.save_long_tail()
        return changed

    def check_class(self, name: str, *, new: bool = False) -> None:
        """UnknownClassError unless `name` is a class or may become one; `new`: also if it looks like a slip of the pen."""
        if not isinstance(name, str) or not is_class(name):
            raise UnknownClassError(f"{name!r} cannot be a class: use up to 32 of a-z, 0-9, - and _, but not {', '.join(NO_CLASSES)}")
        if not new and name not in self.classes and (near := get_close_matches(name, sorted(self.classes), 1, 0.7)):
            raise UnknownClassError(f"no class {name!r}: did you mean {near[0]!r}? To make it one of its own, say --new (`define_class`)")

    def define_class(self, name: str, *, unwanted: bool) -> None:
        """Make a class known, wanted or unwanted, before anything is taught."""
        self.check_class(name, new=True)
        if name in BASE_CLASSES and unwanted != (name == "spam"):
            raise UnknownClassError(f"{name!r} is always {'unwanted' if name == 'spam' else 'wanted'}: choose another name")
        self._ledger.define_class(name, unwanted)
        self._read_rules()

    def make_known(self, name: str) -> None:
        """Make a class known, of wanted mail, if it is not yet, whatever other one its name resembles."""
        if name not in BASE_CLASSES and name not in self._ledger.classes():
            self.define_class(name, unwanted=False)

    @property
    def classes(self) -> frozenset[str]:
        """Names of all classes, taught or only defined."""
        self._refresh()
        return frozenset((*self._store.tables.classes, *self._ledger.classes()))

    @property
    def unwanted(self) -> frozenset[str]:
        """Names of the unwanted classes."""
        return self._unwanted

    def _read_rules(self) -> None:
        self._unwanted = policy.unwanted_of(self._ledger.classes())
        self._spam_from = self.threshold(self._one_wrong_in).spam_from

    def threshold(self, one_wrong_in: int) -> policy.Threshold:
        """From which probability on mail is spam, if at most one good message in so many is to be called so; 0: the fixed one."""
        return policy.threshold(self.good_mail(), one_wrong_in) if one_wrong_in else policy.Threshold()

    def good_mail(self) -> policy.GoodMail:
        """How spammy good mail looked before it was taught, as of the last settling."""
        return goodmail.known(self._ledger)

    # Looking after it

    def settle(self) -> None:
        """Bring the error-driven experts to their settled state, making all tables anew from the receipts."""
        self.refuse_without_receipts()
        self._store.settle()
        goodmail.measure(self._ledger, self._store.tables, self._unwanted)

    def settle_if_due(self) -> bool:
        """Settle when enough has been taught or taken back since the last time; whether it was done."""
        self._refresh()
        due = self.settling_due()
        if due:
            self.settle()
        return due

    def settling_due(self) -> bool:
        """Whether so much has been taught or taken back since, as of the last look at the ledger, or another version has settled."""
        due = max(_SETTLE_AFTER, _SETTLE_SHARE * int(self._store.tables.messages.sum()))
        return self._store.unsettled + _TAKEN_BACK * self._store.taken_back >= due or self._store.is_of_another_learner

    @property
    def ledger(self) -> SqliteLedger:
        """The receipts, for export and import."""
        return self._ledger

    @property
    def least_bits(self) -> int:
        """The tables have 2**bits buckets before they grow: with the receipts, what settled tables are a function of."""
        return self._store.least

    def save_tables(self, path: Path) -> None:
        """Write the tables as they judge now, under a new name, for `adopt_tables` elsewhere. OSError when that fails."""
        self._refresh()
        snapshot.write(path, self._store.tables, durable=False)

    def adopt_tables(self, path: Path) -> None:
        """Judge by tables that a filter with the same key has saved; from then on nothing can be taught here, for want of receipts."""
        if self._ledger.last_seq():
            raise UsageError(f"{self.directory}: has receipts of its own: import tables without receipts into a new state directory")
        tables = snapshot.read(path)
        self._ledger.set_meta(_ADOPTED, "yes")
        self._store.adopt(tables)

    @property
    def adopted(self) -> bool:
        """Whether the tables came without receipts."""
        return self._ledger.get_meta(_ADOPTED) is not None

    def refuse_without_receipts(self) -> None:
        """UsageError if the tables were adopted: they are no sum of receipts here, so there is nothing to add to or to make anew."""
        if self.adopted:
            raise UsageError(f"{self.directory}: its tables were imported without receipts, it can only judge: teach where they came from")

    def seen_through(self, ledger: SqliteLedger) -> Filter:
        """Another filter that judges as this one, by another view of its ledger (`ledger.supposed`). Never teach it."""
        store = TableStore(self.directory, ledger, self.least_bits, durable=False)
        store.catch_up()
        return Filter(self.directory, self.key, ledger, store, self._profile.name, self._one_wrong_in)

    def as_fused_now(self, scores: list[bytes]) -> NDArray[np.float64]:
        """Log-odds of being unwanted from scores that receipts hold, (m,), in any order; what is none of ours is left out."""
        return goodmail.log_odds(scores, self._store.tables, self._unwanted)

    def loss(self) -> Loss | None:
        """Events that the ledger is known to have lost."""
        return loss.find(self.directory, self._ledger)

    def forget_loss(self) -> None:
        """Drop the note about them."""
        loss.forget(self._ledger)

    def status(self) -> Status:
        """What there is, as of now."""
        self._refresh()
        return status.status(self.directory, self._ledger, self._store, self._unwanted)
