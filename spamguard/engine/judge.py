"""Verdicts: what the tables, fused by a profile and corrected by a user's own votes, say of mail.

A `JudgingFilter` holds the tables of one process. Before each judgement it folds what was committed
meanwhile, here or in another process. It never writes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from spamguard.bayes import experts, fusion, personal, tables
from spamguard.bayes.fusion import DEFAULT_PROFILE, PROFILES, MessageScores
from spamguard.bayes.tables import Evidence
from spamguard.engine import explain_text, fold, policy
from spamguard.engine.prepare import (
    ExampleReader,
    check_bytes,
    read_all_features,
    read_batches,
)
from spamguard.engine.store import TableStore
from spamguard.errors import UsageError
from spamguard.ledger import codec
from spamguard.ledger.senders import SenderWords
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.records import Explanation, Features, Scan, Verdict

# Settling is due after so many events and such a share of all lessons (corpora/RESULTS.md, "How
# often to settle"): the cost of each lesson stays the same however many there are.
_MIN_SETTLE_EVENTS = 10
_SETTLE_SHARE = 0.1
# A lesson taken back counts as so many, for its step leaves something behind (corpora/RESULTS.md,
# "Taking back").
_TAKEN_BACK_WEIGHT = 20


class JudgingFilter:
    """The half of a `Filter` that reads: verdicts, scans and explanations."""

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
        """Use `Filter.open`."""
        self.directory = directory
        self.key = key
        self._ledger = ledger
        self._store = store
        self._user_models = fold.UserModels(ledger)
        self.senders = sender_words
        self._profile = PROFILES[profile]
        self._is_default = profile == DEFAULT_PROFILE
        self._reader = ExampleReader(key)
        self._spam_from = spam_threshold
        self._read_classes()
        self._update_parameters()

    def judge(self, raw: bytes, *, user: str = "") -> Verdict:
        """Judge one message (bytes of RFC 5322); never writes, never raises on bad mail.

        Parameters
        ----------
        user : whose mail it is, so that this user's own votes weigh more; "" is nobody's.

        Raises
        ------
        LedgerError, TableError
            The directory is damaged, or used from another thread or process.
        TypeError
            raw is not bytes.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from spamguard import Filter
        >>> with TemporaryDirectory() as place, Filter.open(place) as spam_filter:
        ...     verdict = spam_filter.judge(b"Subject: lunch\\n\\nat noon?")
        >>> verdict.label, verdict.probability
        ('unsure', 0.5)
        """
        features = self._reader.extractor.features(check_bytes(raw))
        sender = self.senders.identify(raw) if self._is_default else b""
        return self.judge_features(features, user, sender)

    def judge_all(
        self, messages: Iterable[bytes], *, user: str = "", cores: int | None = 1
    ) -> Generator[Verdict]:
        """Judge many messages, in order.

        Some are read ahead and judged together, which costs each of them less. Verdicts are those
        of `judge`, to the last bit.

        Parameters
        ----------
        user : as for `judge`.
        cores : how many processes may read the mail beside this one, which judges; None: as many
            as there are cores. They are started after some hundred messages, know nothing but the
            key, and end with the iterator. Each imports the caller's main module again, as
            `multiprocessing` does: a script must begin with ``if __name__ == "__main__":``.

        Raises the same errors as `judge`; SpamguardError: a process that reads mail was killed.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from spamguard import Filter
        >>> messages = [b"Subject: lunch\\n\\nat noon?", b"Subject: win\\n\\nmoney now"]
        >>> with TemporaryDirectory() as place, Filter.open(place) as spam_filter:
        ...     [verdict.label for verdict in spam_filter.judge_all(messages)]
        ['unsure', 'unsure']
        """
        if self.senders.authserv_ids:
            yield from (self.judge(raw, user=user) for raw in messages)
            return
        for features in read_batches(self.key, read_all_features, messages, check_bytes, cores):
            if self._is_default and not user:
                yield from self._judge_batch(features)
            else:
                yield from (self.judge_features(each, user) for each in features)

    def _judge_batch(self, messages: list[Features]) -> Iterator[Verdict]:
        """Judge each; a lesson taught meanwhile is in force from the next message on."""
        self._refresh()
        learnt, parameters = self._store.tables, self._parameters()
        if self._caution:
            yield from map(self.judge_features, messages)
            return
        joints = fusion.fuse_batch(learnt, parameters, tables.batch_features(messages, learnt.bits))
        for number, joint in enumerate(joints):
            self._refresh()
            if self._parameters() is not parameters:
                yield from map(self.judge_features, messages[number:])
                return
            yield self._make_verdict(joint, self._spam_from)

    def judge_features(self, features: Features, user: str = "", sender: bytes = b"") -> Verdict:
        """`judge` for a message that was read. sender: as of `SenderWords.identify`."""
        self._refresh()
        nats = self.senders.find(sender, [user])[user]
        evidence = tables.make_evidence(features, self._store.tables.bits)
        parameters = self._parameters()  # brings the caution up to date
        if self._load_user_model(user) is None and not self._caution:
            joint = self._profile.judge(self._store.tables, parameters, evidence)
            return self._make_verdict(joint, self._spam_from, nats)
        scored, joint = self._score(evidence)
        correction = self._user_corrections([user], evidence, scored).get(user)
        spam_from = self._required_probability(scored, evidence)
        return self._make_verdict(joint, spam_from, nats, correction)

    def scan(
        self, raw: bytes, words: int = 16, extra_fields: bytes = b"", users: Sequence[str] = ()
    ) -> Scan:
        """Judge as `judge`, and return what is kept of a message once it is gone.

        Parameters
        ----------
        words : how many of the strongest words, with the default profile only.
        extra_fields : as in `ExampleReader.read_with_words`.
        users : whose mail it is. Users with votes that count get a verdict of their own, with the
            default profile only.
        """
        example, finder, line = self._reader.read_with_words(raw, extra_fields)
        self._refresh()
        learnt, parameters = self._store.tables, self._parameters()
        evidence = tables.make_evidence(example.features, learnt.bits)
        packed, due = codec.pack(example.features), self.is_settling_due()
        if not self._is_default:
            verdict = self._make_verdict(
                self._profile.judge(learnt, parameters, evidence), self._spam_from
            )
            return Scan(verdict, example.digest, packed, (), self._spam_from, due)
        scored, joint = self._score(evidence)
        spam_from = self._required_probability(scored, evidence)
        sender = self.senders.identify(raw)
        nats = self.senders.find(sender, ("", *users))
        verdict = self._make_verdict(joint, spam_from, nats[""])
        corrections = self._user_corrections(users, evidence, scored)
        by_user = {
            user: self._make_verdict(joint, spam_from, nats[user], corrections.get(user))
            for user in users
            if user in corrections or nats[user] != nats[""]
        }
        parts = fusion.bucket_parts(
            scored, learnt, parameters, evidence, self._likeliest_sides(verdict)
        )
        chosen = fusion.strongest_parts(parts, words)
        strongest = finder.words(
            evidence.buckets.take(chosen), parts.take(chosen), 32 - learnt.bits
        )
        return Scan(
            verdict, example.digest, packed, strongest, spam_from, due, by_user, sender, line
        )

    def explain(self, raw: bytes, *, user: str = "") -> Explanation:
        """Explain the verdict of `judge` by parts that sum to its log-odds.

        UsageError: the profile is not the default.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from spamguard import Filter
        >>> with TemporaryDirectory() as place, Filter.open(place) as spam_filter:
        ...     spam_filter.learn(b"Subject: lunch\\n\\nat noon?", "ham")
        ...     why = spam_filter.explain(b"Subject: lunch\\n\\ntoday")
        ...     {clue.text for clue in why.clues if clue.counts["ham"]} >= {"subject:lunch"}
        True
        True
        """
        extractor = self._reader.extractor
        texts = extractor.token_texts(check_bytes(raw))
        sender = self.senders.identify(raw)
        return self.explain_features(extractor.features(raw), texts, user, sender)

    def explain_features(
        self, features: Features, texts: Mapping[int, str], user: str = "", sender: bytes = b""
    ) -> Explanation:
        """`explain` for a message that was read already.

        texts: of the tokens whose text is known. sender: as of `SenderWords.identify`.
        """
        if not self._is_default:
            raise UsageError("explanations are of the default profile: leave --profile out")
        self._refresh()
        learnt = self._store.tables
        evidence = tables.make_evidence(features, learnt.bits)
        scored, joint = self._score(evidence)
        correction = self._user_corrections([user], evidence, scored).get(user)
        spam_from = self._required_probability(scored, evidence)
        nats = self.senders.find(sender, [user])[user]
        verdict = self._make_verdict(joint, spam_from, nats, correction)
        return explain_text.explain_verdict(
            learnt,
            verdict,
            self._unwanted,
            spam_from,
            evidence,
            fusion.break_down(
                scored, learnt, self._parameters(), evidence, self._likeliest_sides(verdict)
            ),
            correction,
            texts,
            sender=nats,
            usual_spam_from=self._spam_from,
        )

    def _refresh(self) -> None:
        """Fold what was committed, lessons and classes, here or elsewhere."""
        if self._store.refresh():
            self._read_classes()
            self._user_models.follow(self._store.generation)

    def _parameters(self) -> experts.ExpertParameters:
        """The parameters of judging: the same object for as long as nothing changes."""
        learnt, (before, changes, unwanted) = self._store.tables, self._estimated_for
        if before is not learnt or changes != learnt.changes or unwanted != self._unwanted:
            self._update_parameters()
        return self._estimated

    def _update_parameters(self) -> None:
        """Estimate parameters, and what the label spam needs besides its threshold.

        Other profiles than the default have no experts of words to ask, hence no caution.
        """
        learnt = self._store.tables
        self._estimated = parameters = experts.estimate_parameters(learnt, self._unwanted)
        self._estimated_for = learnt, learnt.changes, self._unwanted
        self._caution = None
        if self._is_default:
            good = int(tables.sum_by_side(learnt.messages, parameters.sides)[0])
            self._caution = policy.compute_caution(good, parameters.confidence)

    def _required_probability(self, scored: MessageScores, evidence: Evidence) -> float:
        """Probability from which on this message is called spam."""
        if not self._caution:
            return self._spam_from
        text, unknown = experts.familiarity(scored.rows.counts, scored.scores, evidence)
        return max(self._spam_from, self._caution.required_probability(text, unknown))

    def _score(self, evidence: Evidence) -> tuple[MessageScores, list[float]]:
        """The default profile's scores of a message, and the classes' log-probabilities."""
        learnt, parameters = self._store.tables, self._parameters()
        scored = fusion.score_message(learnt, parameters, evidence)
        return scored, fusion.fuse_scores(learnt, parameters, scored.scores)

    def _make_verdict(
        self,
        joint: list[float],
        spam_from: float,
        nats: int = 0,
        correction: personal.UserCorrection | None = None,
    ) -> Verdict:
        """nats: what a word about the sender adds to the log-odds."""
        joint = correction.apply(joint) if correction else joint
        return policy.verdict_from_joint(self._store.tables, joint, self._unwanted, spam_from, nats)

    def _likeliest_sides(self, verdict: Verdict) -> tuple[int, int]:
        """Numbers of the likeliest unwanted class and the likeliest wanted one."""
        index = self._store.tables.classes.index
        favoured, against = policy.likeliest_sides(verdict, self._unwanted)
        return index(favoured), index(against)

    def _user_corrections(
        self, names: Sequence[str], evidence: Evidence, scored: MessageScores
    ) -> dict[str, personal.UserCorrection]:
        """What users' own votes change, for those users who have votes that count."""
        models = {
            user: model for user in names if (model := self._load_user_model(user)) is not None
        }
        if not models:
            return {}
        learnt = self._store.tables
        shared = personal.token_frequencies(learnt, scored.rows.counts)
        return {
            user: personal.compute_correction(model, learnt.classes, evidence, shared)
            for user, model in models.items()
        }

    def _load_user_model(self, user: str) -> personal.UserVoteCounts | None:
        if not user or not self._is_default:
            return None
        return self._user_models.load(user, self._store.seq, self._store.tables.bits)

    @property
    def unwanted(self) -> frozenset[str]:
        """Names of the unwanted classes."""
        return self._unwanted

    def _read_classes(self) -> None:
        self._unwanted = policy.unwanted_classes(self._ledger.classes())

    def is_settling_due(self) -> bool:
        """Whether the process that settles has work, as of the last look at the ledger."""
        due = max(_MIN_SETTLE_EVENTS, _SETTLE_SHARE * int(self._store.tables.messages.sum()))
        events = self._store.unsettled + _TAKEN_BACK_WEIGHT * self._store.taken_back
        return events >= due or self._store.has_work
