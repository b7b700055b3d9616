"""The filter: judge, learn, forget, explain. Doors and commands talk to nothing else of the engine.

Every change is one transaction on the ledger; the tables follow from the ledger (`store`), and
verdicts from the tables, fused by a profile and corrected by a user's own votes. Before each
judgement a filter folds what was committed meanwhile, here or in another process. Judging and
explaining must never write.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from spamguard import keys, users
from spamguard.bayes import experts, fusion, personal
from spamguard.bayes.experts import ScoredMessage
from spamguard.bayes.fusion import DEFAULT_PROFILE, PROFILES
from spamguard.bayes.tables import BASE_CLASSES, DEFAULT_BITS
from spamguard.database import ClosedOnExit
from spamguard.engine import explain_text, fold, policy, snapshot, store
from spamguard.engine.prepare import Example, ExampleReader, check_bytes, read_batches
from spamguard.engine.store import TableStore
from spamguard.errors import UnknownClassError, UsageError
from spamguard.ledger import codec
from spamguard.ledger.senders import SenderWords
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NewVote, make_settling_vote
from spamguard.records import (
    EXTRACTOR,
    TOKEN_SETS,
    Explanation,
    Features,
    Scan,
    Status,
    Verdict,
)
from spamguard.storage import KEY_FILE, LEDGER_FILE, batches
from spamguard.users import Origin

_SCORED_TOGETHER = 64  # lessons
_STAYED = "stayed"  # note of the ledger: how much ham was delivered and stayed


class Filter(ClosedOnExit):
    """A spam filter in a directory of its own.

    It belongs to one process and one thread; open another one in each. Any number of filters may
    share a directory.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from spamguard import Filter
    >>> lessons = [(b"Subject: lunch\\n\\nat %d" % hour, "ham") for hour in range(10)]
    >>> lessons += [(b"Subject: you win\\n\\n%d dollars" % prize, "spam") for prize in range(10)]
    >>> with TemporaryDirectory() as place, Filter.open(place) as spam_filter:
    ...     spam_filter.learn_all(lessons).count(True)
    ...     spam_filter.judge(b"Subject: lunch\\n\\nat noon").label
    ...     spam_filter.judge(b"Subject: you win\\n\\na million dollars").probability > 0.9
    20
    'ham'
    True
    """

    def __init__(
        self,
        directory: Path,
        key: bytes,
        ledger: SqliteLedger,
        store: TableStore,
        profile: str,
        spam_threshold: float,
        sender_words: SenderWords,
    ) -> None:
        """Use `Filter.open`.

        Attributes
        ----------
        ledger
            The receipts, for export and import.
        min_bits
            The tables have 2**min_bits buckets before they grow. Settled tables are a function of
            this and the receipts.
        unwanted
            Names of the unwanted classes.
        stayed
            How much `note_stayed` was told of.
        """
        self.directory = directory
        self.key = key
        self.ledger = ledger
        self.min_bits = store.min_bits
        self._store = store
        self._user_models = fold.UserModels(ledger)
        self.senders = sender_words
        self._judge_alone = PROFILES[profile]
        self._reader = ExampleReader(key)
        self._spam_from = spam_threshold
        self._read_classes()
        self._estimated = experts.estimate_parameters(store.tables, self.unwanted)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        profile: str = DEFAULT_PROFILE,
        spam_threshold: float = policy.SPAM_THRESHOLD,
        authserv_ids: Collection[str] = (),
        results_stripped: bool = False,
        _bits: int = DEFAULT_BITS,
        _durable: bool = True,
        _load: bool = True,
    ) -> Filter:
        """Open the filter in `directory`; it is created when new.

        Parameters
        ----------
        profile
            How to judge, a name of `bayes.fusion.PROFILES`.
        spam_threshold
            Probability of being unwanted from which on a message is called spam.
        authserv_ids
            Servers that are believed about who has sent a message (`mail.authentication`), by the
            names in their Authentication-Results.
        results_stripped
            These servers have removed the results that came with a message.

        Raises
        ------
        LedgerError, TableError
            The directory cannot be used.
        UsageError
            There is no such profile.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from spamguard import Filter
        >>> with TemporaryDirectory() as place:
        ...     with Filter.open(place) as spam_filter:
        ...         spam_filter.learn(b"Subject: lunch\\n\\nat noon?", "ham")
        ...     with Filter.open(place, profile="multinomial") as spam_filter:
        ...         spam_filter.status().classes
        True
        {'ham': 1, 'spam': 0}
        """
        # _bits: the tables of a new filter have 2**bits buckets until they grow. _durable: lessons
        # survive a power cut. _load: map the tables; without them only `settle` makes sense, which
        # mends damaged ones.
        if profile not in PROFILES:
            raise UsageError(f"no profile {profile!r}: choose one of {', '.join(PROFILES)}")
        state = Path(directory).absolute()  # the process may change its directory
        key = keys.load_key(state / KEY_FILE, create=store.make_state_directory(state))
        fingerprint = keys.key_fingerprint(key)
        ledger = SqliteLedger.open(state / LEDGER_FILE, fingerprint, durable=_durable)
        try:
            min_bits = store.read_min_bits(ledger, _bits)
            table_store = TableStore(state, ledger, min_bits, durable=_durable)
            if _load:
                table_store.catch_up()
            words = SenderWords(ledger, key, authserv_ids, results_stripped=results_stripped)
            return cls(state, key, ledger, table_store, profile, spam_threshold, words)
        except BaseException:
            ledger.close()
            raise

    def close(self) -> None:
        """Close the files; leaving a `with` block does so too."""
        self.ledger.close()

    # Judging

    def judge(self, raw: bytes, *, user: str = "") -> Verdict:
        """Judge one message (bytes of RFC 5322); never writes, never raises on bad mail.

        Parameters
        ----------
        user
            Whose mail it is, so that this user's own votes weigh more; "" is nobody's.

        Raises
        ------
        LedgerError, TableError
            The directory is damaged, or used from another thread or process.
        TypeError
            raw is not bytes.
        """
        features = self._reader.read_features(raw)
        sender = b"" if self._judge_alone else self.senders.identify(raw)
        return self.judge_features(features, user, sender)

    def judge_all(
        self, messages: Iterable[bytes], *, user: str = "", cores: int | None = 1
    ) -> Generator[Verdict]:
        """Judge many messages, in order.

        Some are read ahead and judged together, which costs each of them less. Verdicts are those
        of `judge`, to the last bit.

        Parameters
        ----------
        cores
            How many processes may read the mail beside this one, which judges; None: as many as
            there are cores. They are started after some hundred messages, know nothing but the key,
            and end with the iterator. Each imports the caller's main module again, as
            `multiprocessing` does: a script must begin with ``if __name__ == "__main__":``.

        Raises the same errors as `judge`, and SpamguardError if a process that reads mail was
        killed.
        """
        if self.senders.authserv_ids:
            yield from (self.judge(raw, user=user) for raw in messages)
            return
        for features in read_batches(self.key, ExampleReader.read_features, messages, cores):
            if self._judge_alone or user:
                yield from (self.judge_features(each, user) for each in features)
            else:
                yield from self._judge_batch(features)

    def _judge_batch(self, messages: list[Features]) -> Iterator[Verdict]:
        """Judge each; a lesson taught meanwhile is in force from the next message on."""
        self._refresh()
        parameters, judged = self._parameters(), 0
        if parameters.wanted + self.stayed >= policy.ENOUGH_HAM:
            for joint in fusion.fuse_batch(parameters, messages):
                self._refresh()
                if self._parameters() is not parameters:
                    break
                judged += 1
                yield self._make_verdict(joint, self._spam_from)
        yield from map(self.judge_features, messages[judged:])

    def judge_features(self, features: Features, user: str = "", sender: bytes = b"") -> Verdict:
        """`judge` for a message that was read, with what `SenderWords.identify` says of it."""
        scored, joint, spam_from = self._score(features)
        nats = self.senders.find(sender, [user])[user].nats if sender else 0
        return self._make_verdict(joint, spam_from, nats, self._correct(scored, user))

    def scan(
        self, raw: bytes, words: int = 16, extra_fields: bytes = b"", users: Sequence[str] = ()
    ) -> Scan:
        """Judge as `judge`, and return what is kept of a message once it is gone.

        Parameters
        ----------
        words
            How many of the strongest words, with the default profile only.
        extra_fields
            As in `ExampleReader.read_with_words`.
        users
            Whose mail it is. Users with votes that count get a verdict of their own, with the
            default profile only.
        """
        example, finder, line = self._reader.read_with_words(raw, extra_fields)
        scored, joint, spam_from = self._score(example.features)
        packed, due = codec.pack(example.features), self.is_settling_due()
        if scored is None:
            verdict = self._make_verdict(joint, spam_from)
            return Scan(verdict, example.digest, packed, (), spam_from, due)
        sender = self.senders.identify(raw)
        said = self.senders.find(sender, ("", *users))
        verdict = self._make_verdict(joint, spam_from, said[""].nats)
        corrections = {user: self._correct(scored, user) for user in users}
        by_user = {
            user: self._make_verdict(joint, spam_from, said[user].nats, correction)
            for user, correction in corrections.items()
            if correction or said[user].nats != said[""].nats
        }
        parts, *_ = fusion.token_parts(scored, *policy.likeliest_sides(verdict, self.unwanted))
        chosen = fusion.strongest_parts(parts, words)
        strongest = finder.words(
            scored.evidence.buckets.take(chosen), parts.take(chosen), 32 - self._store.tables.bits
        )
        return Scan(
            verdict, example.digest, packed, strongest, spam_from, due, by_user, sender, line
        )

    def explain(self, raw: bytes, *, user: str = "") -> Explanation:
        """Explain the verdict of `judge` by parts that sum to its log-odds.

        Raises UsageError if the profile is not the default.
        """
        extractor = self._reader.extractor
        texts = extractor.token_texts(check_bytes(raw))
        sender = self.senders.identify(raw)
        return self.explain_features(extractor.features(raw), texts, user, sender)

    def explain_features(
        self, features: Features, texts: Mapping[int, str], user: str, sender: bytes
    ) -> Explanation:
        """`explain` for a message that was read, with the texts that are known of its tokens."""
        scored, joint, spam_from = self._score(features)
        if scored is None:
            raise UsageError("explanations are of the default profile: leave --profile out")
        correction = self._correct(scored, user)
        said = self.senders.find(sender, [user])[user]
        verdict = self._make_verdict(joint, spam_from, said.nats, correction)
        return explain_text.explain_verdict(
            scored,
            verdict,
            correction,
            texts,
            spam_from=spam_from,
            said=said,
            usual_spam_from=self._spam_from,
        )

    def _refresh(self) -> None:
        if self._store.refresh():
            self._read_classes()

    def _parameters(self) -> experts.ExpertParameters:
        """The parameters of judging: the same object for as long as nothing changes."""
        learnt, known = self._store.tables, self._estimated
        is_same = known.tables is learnt and known.changes == learnt.changes
        if not is_same or known.unwanted != self.unwanted:
            self._estimated = experts.estimate_parameters(learnt, self.unwanted)
        return self._estimated

    def _score(self, features: Features) -> tuple[ScoredMessage | None, list[float], float]:
        """Score a message by all that was taught.

        Returns
        -------
        What the default profile makes of it (None with another one), the classes' unnormalised
        log-probabilities, and the probability from which on this message is called spam.
        """
        self._refresh()
        parameters, spam_from = self._parameters(), self._spam_from
        if self._judge_alone:
            return None, self._judge_alone(parameters, features), spam_from
        scored = experts.score_message(parameters, features)
        good = parameters.wanted + self.stayed
        if good < policy.ENOUGH_HAM:
            spam_from = max(
                spam_from,
                policy.required_probability(
                    good, parameters.confidence, *experts.familiarity(scored)
                ),
            )
        return scored, fusion.fuse(scored), spam_from

    def _make_verdict(
        self,
        joint: list[float],
        spam_from: float,
        nats: int = 0,  # what a word about the sender adds to the log-odds
        correction: personal.UserCorrection | None = None,
    ) -> Verdict:
        joint = correction.apply(joint) if correction else joint
        return policy.make_verdict(self._estimated, joint, spam_from, nats)

    def _correct(self, scored: ScoredMessage | None, user: str) -> personal.UserCorrection | None:
        if scored is None or not user:
            return None
        store = self._store
        votes = self._user_models.load(user, store.seq, store.tables.bits, store.resets)
        return personal.compute_correction(votes, scored) if votes else None

    def _read_classes(self) -> None:
        self._defined = self.ledger.classes()
        self.unwanted = policy.unwanted_classes(self._defined)
        self.stayed = int(self.ledger.get_meta(_STAYED) or 0)

    def is_settling_due(self) -> bool:
        """Whether to settle, as of the last look at the ledger. Where a log is shared, the courier
        looks after that (`store.is_settler_wanted`).
        """
        return self._store.is_settling_due()

    # Teaching

    def learn(
        self, raw: bytes, label: str, *, user: str = "", origin: str = Origin.LIBRARY
    ) -> bool:
        """Teach one message; returns whether that changed anything.

        Teaching the same again changes nothing; teaching it as another class corrects it.

        Parameters
        ----------
        label
            A class. A new name makes one, of wanted mail (else `define_class`).
        user
            Who votes; "" is nobody in particular.
        origin
            Where the vote comes from; it is kept with it.

        Raises
        ------
        UnknownClassError
            label cannot name a class, or looks like a slip of the pen.
        LedgerError
            The message was not taught.
        TableError
            It was taught, but the tables cannot be written.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from spamguard import Filter
        >>> with TemporaryDirectory() as place, Filter.open(place) as spam_filter:
        ...     spam_filter.learn(b"Subject: lunch\\n\\nat noon?", "ham")
        ...     spam_filter.learn(b"Subject: lunch\\n\\nat noon?", "ham")
        True
        False
        """
        example = self._reader.read_example(raw)
        votes = self.make_votes([example], label, user=user, origin=origin)
        return self.cast_votes(votes, settle=True)[0]

    def learn_all(
        self, pairs: Iterable[tuple[bytes, str]], *, user: str = "", origin: str = Origin.LIBRARY
    ) -> list[bool]:
        """Teach many messages in one transaction: all of them, or none after an error.

        Parameters
        ----------
        pairs
            Each message with its class. Of a message that comes twice the last class counts.

        Returns
        -------
        list of bool
            For each pair, whether it changed anything.

        Raises
        ------
        UnknownClassError, LedgerError, TableError
            As in `learn`.
        """
        lessons = [(self._reader.read_example(raw), label) for raw, label in pairs]
        examples, labels = [example for example, _ in lessons], [label for _, label in lessons]
        votes = self.make_votes(examples, labels, user=user, origin=origin)
        return self.cast_votes(votes, settle=True)

    def forget(self, raw: bytes, *, user: str = "", origin: str = Origin.LIBRARY) -> bool:
        """Take back this user's vote on one message; returns whether there was one.

        The counts are then as if it had never been taught, bit for bit. Raises the same errors as
        `learn`.
        """
        changed = self.forget_digests([self._reader.digest(raw)], user=user, origin=origin)[0]
        self.settle_if_due()
        return changed

    def learn_examples(
        self,
        lessons: Sequence[Example],
        label: str,
        *,
        user: str = "",
        origin: str = Origin.LIBRARY,
    ) -> list[bool]:
        """Teach several messages in one transaction; for each, whether it changed anything."""
        return self.cast_votes(self.make_votes(lessons, label, user=user, origin=origin))

    def make_votes(
        self,
        lessons: Sequence[Example],
        label: str | Sequence[str],
        *,
        user: str = "",
        origin: str = Origin.LIBRARY,
    ) -> list[NewVote]:
        """The votes that teach these messages, all as one class or each as its own, for
        `cast_votes`.

        A class that is new becomes known; nothing else changes.
        """
        labels = [label] * len(lessons) if isinstance(label, str) else label
        distinct = list(dict.fromkeys(labels))
        for name in distinct:
            self.check_class(name)
        for name in distinct:
            self.ensure_class(name)
        now = int(time.time())
        return [
            NewVote(
                lesson.digest,
                user,
                label,
                codec.pack(lesson.features),
                scores,
                origin,
                now,
                EXTRACTOR,
            )
            for lesson, label, scores in zip(
                lessons, labels, self.first_scores(lessons), strict=True
            )
        ]

    def forget_digests(
        self, digests: Sequence[bytes], *, user: str = "", origin: str = Origin.LIBRARY
    ) -> list[bool]:
        """Take back votes on several messages (`ExampleReader.digest`), in one transaction."""
        now = int(time.time())
        return self.cast_votes(
            [NewVote(digest, user, None, b"", b"", origin, now, EXTRACTOR) for digest in digests]
        )

    def first_scores(self, lessons: Sequence[Example]) -> list[bytes]:
        """The experts' scores before each message was taught, packed for its receipt.

        Messages that are taught already, by anybody, keep their first scores.
        """
        digests = [lesson.digest for lesson in lessons]
        kept_scores = self.ledger.users.first_scores(digests, EXTRACTOR)
        parameters, learnt, packed = self._parameters(), self._store.tables, list[bytes]()
        for some in batches([lesson.features for lesson in lessons], _SCORED_TOGETHER):
            scores = experts.batch_scores(parameters, some)
            packed += [fold.pack_first_scores(rows, learnt.classes) for rows in scores]
        return list(map(kept_scores.get, digests, packed))

    def cast_votes(
        self,
        votes: Sequence[NewVote],
        *,
        unless_voted_since: int | None = None,
        settle: bool = False,
    ) -> list[bool]:
        """Cast votes in one transaction, as `SqliteLedger.append`, and with `settle` settle if that
        is due then; for each vote, whether it changed anything.
        """
        if not all(isinstance(vote.user, str) for vote in votes):
            raise TypeError(
                "the name of a user is a str, and empty for what is nobody's in particular"
            )
        changed = self.ledger.append(votes, unless_voted_since=unless_voted_since)
        self._refresh()
        self._store.save_if_long_tail()
        if settle:
            self.settle_if_due()
        return changed

    # Classes

    def check_class(self, name: str, *, new: bool = False, unwanted: bool | None = None) -> None:
        """Raise UnknownClassError unless `name` is a class or may become one.

        With `new`, a name that looks like a slip of the pen may become one, too. `unwanted` is the
        side it is to be on, if that is said.
        """
        if not isinstance(name, str) or not users.is_class_name(name):
            raise UnknownClassError(
                f"{name!r} cannot be a class: use up to 32 of a-z, 0-9, - and _, "
                f"but not {', '.join(users.RESERVED_CLASSES)}"
            )
        if unwanted is not None and name in BASE_CLASSES and unwanted != (name == "spam"):
            side = "unwanted" if name == "spam" else "wanted"
            raise UnknownClassError(f"{name!r} is always {side}: choose another name")
        if new or name in self.classes:
            return
        if near := get_close_matches(name, sorted(self.classes), 1, 0.7):
            raise UnknownClassError(
                f"no class {name!r}: did you mean {near[0]!r}? "
                "To make it one of its own, say --new (`define_class`)"
            )

    def define_class(self, name: str, *, unwanted: bool) -> None:
        """Make a class known, wanted or unwanted, before anything is taught."""
        self.check_class(name, new=True, unwanted=unwanted)
        self.ledger.define_class(name, unwanted)
        self._read_classes()

    def ensure_class(self, name: str) -> None:
        """Make a class known, of wanted mail, if it is not, even if its name resembles another."""
        if name not in BASE_CLASSES and name not in self.ledger.classes():
            self.define_class(name, unwanted=False)

    @property
    def classes(self) -> frozenset[str]:
        """Names of all classes, taught or only defined."""
        self._refresh()
        return frozenset((*self._store.tables.classes, *self._defined))

    # Maintenance

    def settle(self) -> None:
        """Settle the experts: all tables are made from the receipts.

        `learn` does so when it is due. Call it after much was taught at once.
        """
        self._store.settle()

    def settle_everywhere(self) -> None:
        """Settle now; where a log is shared, the daemon of each node does it soon."""
        if self.ledger.shared is None:
            self.settle()
        else:
            with self.ledger.exclusive(force=True) as cast:
                cast([make_settling_vote(int(time.time()))])

    def note_stayed(self, count: int) -> None:
        """Note how much mail was judged to be ham and never taught, since nobody complained.

        Each is as good as a lesson where caution ends. The number never falls.
        """
        if count > self.stayed:
            self.ledger.set_meta(_STAYED, str(count))

    def settle_if_due(self) -> bool:
        """Settle if that is due here, where no log is shared; returns whether it was."""
        self._refresh()
        due = self.is_settling_due()
        if due:
            self.settle()
        return due

    def follow_shared_log(self) -> bool:
        """For the process that settles: `TableStore.follow_shared_log`."""
        return self._store.follow_shared_log()

    def find_loss(self) -> snapshot.LedgerLoss | None:
        """Events that the ledger has provably lost."""
        lost = self.ledger.find_lost()
        return snapshot.LedgerLoss(*lost) if lost else None

    def status(self) -> Status:
        """What the filter knows, as of now."""
        self._refresh()
        learnt = self._store.tables
        quarter = (1 << learnt.bits) // len(learnt.vocabulary)
        defined = dict.fromkeys(self._defined, 0)
        return Status(
            classes=defined | dict(zip(learnt.classes, learnt.messages.tolist(), strict=True)),
            unwanted=self.unwanted,
            buckets=1 << learnt.bits,
            vocabulary=dict(zip(TOKEN_SETS, learnt.vocabulary.tolist(), strict=True)),
            used=dict(zip(TOKEN_SETS, (learnt.vocabulary / quarter).tolist(), strict=True)),
            events=self.ledger.last_position(),
            unsettled=self._store.unsettled,
            ledger_bytes=self.ledger.file_bytes(),
            tables_bytes=snapshot.snapshot_bytes(self.directory),
            extractor=EXTRACTOR,
            fingerprint=self.ledger.fingerprint,
            stayed=self.stayed,
        )
