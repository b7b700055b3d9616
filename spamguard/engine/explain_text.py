"""From the experts' log-odds to explanations that people read.

`explain_verdict` puts an explanation together from its parts. The other functions say what a
terminal or a page shows of it: figures that add up, a sentence, a few bars, and all features with
readable names.

Every feature has a kind, by the section in front of its token's text (`mail.content`), and every
kind a group. The history keeps the text of the strongest tokens; all others are one feature, the
last. Parts sum to the log-odds, also by group and rounded. Strangers write the names: escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from spamguard.bayes import experts
from spamguard.bayes.experts import ScoredMessage
from spamguard.bayes.formulas import Floats
from spamguard.bayes.fusion import break_down, class_difference
from spamguard.bayes.personal import UserCorrection
from spamguard.engine import policy
from spamguard.ledger.senders import SenderWord
from spamguard.log import printable
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import TOKEN_SETS, Clue, Explanation, Verdict

STEPS_PER_NAT = 1000  # parts are shown in thousandths
PERSONAL_EXPERT = "personal"  # the part of the user's own votes, among the experts


# ---- putting an explanation together


def explain_verdict(
    message: ScoredMessage,
    verdict: Verdict,
    correction: UserCorrection | None,
    texts: Mapping[int, str],
    *,
    spam_from: float,
    said: SenderWord,
    usual_spam_from: float,
) -> Explanation:
    """Why a verdict, by the likeliest class of each side.

    Parameters
    ----------
    texts
        Readable texts of tokens, where they are known.
    spam_from, usual_spam_from
        The threshold of this message, and the one that holds once enough good mail is known.
    said
        The word about the sender that counts.
    """
    tables, unwanted = message.parameters.tables, message.parameters.unwanted
    favoured, against = sides = policy.likeliest_sides(verdict, unwanted)
    parts = break_down(message, *sides)
    shares = dict(zip(experts.EXPERTS, parts.experts.tolist(), strict=True))
    scores = dict(zip(experts.EXPERTS, parts.scores.tolist(), strict=True))
    log_odds, biases = parts.log_odds, parts.biases
    if said.nats:
        log_odds += said.nats
        shares["sender"] = scores["sender"] = said.nats
    if correction:
        numbers = tables.classes.index(favoured), tables.classes.index(against)
        log_odds = verdict.log_odds
        shares[PERSONAL_EXPERT] = share = verdict.log_odds - said.nats - parts.log_odds
        scores[PERSONAL_EXPERT] = float(class_difference(correction.evidence, numbers))
        biases += _add_user_parts(parts.buckets, share, correction, numbers)
    few = message.parameters.fewest < policy.MIN_LESSONS
    clues = _sorted_clues(message, parts.buckets, texts)
    words = [clue.part for clue in clues]
    return Explanation(
        verdict=verdict,
        favoured=favoured,
        against=against,
        log_odds=log_odds,
        prior=parts.prior,
        biases=biases,
        shares=shares,
        scores=scores,
        clues=clues,
        traits=dict(zip(TRAITS, parts.traits.tolist(), strict=True)),
        numbers=dict(zip(NUMBERS, parts.numbers.tolist(), strict=True)),
        few=few,
        cautious=not few and usual_spam_from <= verdict.probability < spam_from,
        flip=None if few else policy.find_flip(verdict, sides, words, spam_from),
        sender=said.nats,
        of_domain=said.of_domain,
    )


def _add_user_parts(
    buckets: Floats, share: float, correction: UserCorrection, numbers: tuple[int, int]
) -> float:
    """Add to the tokens their parts of the user's share; returns what is left of it.

    With more than two classes, what the votes move between these two need not be what they move
    between both sides.
    """
    shift = float(class_difference(correction.shifts, numbers))
    fraction = min(max(share / shift, 0.0), 1.0) if shift else 0.0
    parts = class_difference(correction.parts, numbers)
    buckets[correction.token_indices] += fraction * parts
    return share - fraction * shift


def _sorted_clues(message: ScoredMessage, parts: Floats, texts: Mapping[int, str]) -> list[Clue]:
    tables = message.parameters.tables
    text_of: dict[int, str] = {}
    for token, text in texts.items():
        text_of.setdefault(token >> (32 - tables.bits), text)
    counts = message.counts.T.astype(np.int64).tolist()
    columns = message.evidence.buckets.tolist(), parts.tolist(), counts
    clues = [
        Clue(
            text_of.get(bucket, ""),
            part,
            dict(zip(tables.classes, counts, strict=True)),
            TOKEN_SETS[bucket >> tables.bits - 2],  # named by its two top bits
        )
        for bucket, part, counts in zip(*columns, strict=True)
    ]
    return sorted(clues, key=lambda clue: -abs(clue.part))


# ---- figures


def round_parts(parts: Iterable[float], total: float) -> list[int]:
    """At least one part in thousandths; they sum to the total in thousandths.

    The largest part takes up the rounding.

    >>> round_parts([0.3334, 0.3334, 0.3334], 1.0002)
    [334, 333, 333]
    """
    steps = [round(part * STEPS_PER_NAT) for part in parts]
    largest = max(range(len(steps)), key=lambda at: abs(steps[at]))
    steps[largest] += round(total * STEPS_PER_NAT) - sum(steps)
    return steps


def describe_odds(why: Explanation, class_title: Callable[[str], str] = str) -> str:
    """Which classes the log-odds compare; with more than two, both sides as wholes."""
    pair = f"{class_title(why.favoured)} against {class_title(why.against)}"
    if len(why.verdict.probabilities) == 2:
        return pair
    return f"unwanted mail against wanted, most likely {pair}"


# ---- features and their groups


class GroupKind(NamedTuple):
    """How a group is shown to people."""

    title: str  # above a bar
    phrase: str  # in the sentence, in the plural
    kinds: Mapping[str, str]  # of its features, with a sentence about each, as in a tooltip


class FeatureKind(NamedTuple):
    """A kind of feature as people see it."""

    group: str  # a key of `GROUPS`
    about: str  # one sentence


GROUPS = {
    "words": GroupKind(
        "Words",
        "the words of its text",
        {
            "word": "A word of the text that a reader sees.",
            "pair": "Two neighbouring words of the text.",
            "subject": "A word, or two, of the subject.",
            "closing": "A word of the signature, the footer or the last line.",
        },
    ),
    "sender": GroupKind(
        "Sender and servers",
        "its sender and servers",
        {
            "address": "Part of an address or name in From, To, Cc or Reply-To.",
            "server": "Part of what the servers on the way wrote (Received).",
            "message id": "Host or form of the Message-ID and of its references.",
            "date": "Form and time zone of the date.",
            "header field": "A field of the header, or a word in it.",
            "relation": "Whether sender, recipient and servers belong together.",
        },
    ),
    "links": GroupKind(
        "Links",
        "its links",
        {
            "link": "Part of the address of a link.",
            "link host": "The host to which a link leads, or its domain.",
            "link trait": "How many links there are, and whose hosts they lead to.",
        },
    ),
    "layout": GroupKind(
        "Layout",
        "its layout and attachments",
        {
            "markup": "A tag of HTML or one of its attributes.",
            "hidden word": "A word that HTML hides from the reader.",
            "attachment": "Name or kind of an attached file.",
            "structure": "How the message is built: its parts, types and defects.",
            "measure": "A size, a number or a share, measured in the message.",
        },
    ),
    "letters": GroupKind(
        "Letters", "its letters", {"letters": "Up to five characters in a row; _ is a blank."}
    ),
    "unkept": GroupKind(
        "Weaker features: text not kept",
        "many weak features",
        {"not kept": "The history keeps the texts of the strongest only."},
    ),
    "said": GroupKind(
        "What was said of its sender",
        "what was said of its sender",
        {"sender word": "“Always from this sender”, or its domain, where it is authenticated."},
    ),
    "start": GroupKind(
        "Before reading",
        "the lessons as a whole",
        {"start": "What counts for any message, before it is read."},
    ),
}
KINDS = {
    kind: FeatureKind(name, about)
    for name, group in GROUPS.items()
    for kind, about in group.kinds.items()
}

_KIND_SECTIONS = {
    "subject": "subject",
    "closing": "footer end",
    "address": "address from to cc reply-to sender",
    "server": "received",
    "message id": "id-host id-shape references in-reply-to",
    "date": "date-shape zone",
    "link": "url",
    "link host": "host",
    "markup": "tags",
    "hidden word": "hidden",
    "attachment": "attachment",
    "structure": "mime-version content-type content-transfer-encoding content-disposition",
}
_SECTION_KINDS = {
    section: kind for kind, sections in _KIND_SECTIONS.items() for section in sections.split()
}
_LINK_TRAITS, _RELATIONS = ("links_", "link_"), ("to_", "reply_to_", "sender_", "id_")
_CLUE_NAMES = {
    "to_sender": "recipient in the sender's domain",
    "to_other": "recipient in another domain than the sender",
    "reply_to_sender": "replies go to the sender's domain",
    "reply_to_other": "replies go to another domain",
    "links_sender": "links lead to the sender's domain only",
    "links_some_sender": "links lead to the sender's domain and others",
    "links_elsewhere": "links lead to other domains than the sender's",
    "sender_passed_on": "a server of the sender's domain passed it on",
    "sender_not_passed_on": "no server of the sender's domain passed it on",
    "id_passed_on": "a server of the Message-ID's domain passed it on",
    "id_not_passed_on": "no server of the Message-ID's domain passed it on",
}
_GRAMS = TOKEN_SETS[3]
Said = TypeVar("Said")
_GAP = " … "  # of a pair that is no gram


class ExplainedFeature(NamedTuple):
    """A feature with its readable name."""

    name: str
    kind: str  # a key of `KINDS`
    part: float
    tokens: int = 0  # how many it stands for; a size, for example, stands for none
    text: str = ""  # as in `Clue`
    counts: Mapping[str, int] | None = None  # as in `Clue`, or None where they would say nothing

    @property
    def group(self) -> str:
        """A key of `GROUPS`."""
        return KINDS[self.kind].group


class GroupPart(NamedTuple):
    """What a group adds to the log-odds."""

    name: str  # a key of `GROUPS`
    title: str  # the name for people
    part: float
    features: int  # how many it has


def list_features(why: Explanation) -> list[ExplainedFeature]:
    """All features, the strongest first and those without text last; they sum to the log-odds."""
    features = [
        ExplainedFeature(name, kind, clue.part, 1, clue.text, clue.counts)
        for clue in why.clues
        if clue.text
        for kind, name in (describe_clue(clue),)
    ]
    for traits, kind in ((why.traits, "structure"), (why.numbers, "measure")):
        features += [ExplainedFeature(name, kind, part) for name, part in traits.items()]
    said = f"mail of {_spoken_of(why)} is {'wanted' if why.sender < 0 else 'unwanted'}"
    features += [ExplainedFeature(said, "sender word", why.sender)] if why.sender else []
    features.append(ExplainedFeature("biases of the experts", "start", why.biases))
    features.append(ExplainedFeature("prior", "start", why.prior))
    features.sort(key=lambda feature: -abs(feature.part))
    unkept = [clue.part for clue in why.clues if clue.part and not clue.text]
    if unkept:
        name = "weaker features, text not kept"
        features.append(ExplainedFeature(name, "not kept", sum(unkept), len(unkept)))
    return features


def _spoken_of(why: Explanation) -> str:
    return "everybody at its sender's domain" if why.of_domain else "its sender"


def sum_groups(features: Sequence[ExplainedFeature]) -> list[GroupPart]:
    """The groups that have features, in the order of `GROUPS`."""
    by_group = {name: [f for f in features if f.group == name] for name in GROUPS}
    return [
        GroupPart(
            name,
            GROUPS[name].title,
            sum(f.part for f in members),
            sum(max(1, f.tokens) for f in members),
        )
        for name, members in by_group.items()
        if members
    ]


def describe_clue(clue: Clue) -> tuple[str, str]:
    """Kind and readable name of a token with a text.

    >>> describe_clue(Clue("host:example_org", 1.0, {}, "clues"))
    ('link host', 'example.org')
    """
    section, colon, token = clue.text.partition(":")
    if not colon:
        return ("pair" if clue.token_set in ("pairs", "grams") else "word"), clue.text
    if section == "letters" and clue.token_set == _GRAMS and _GAP not in token:
        return "letters", token
    if section == "clue":
        related = "relation" if token.startswith(_RELATIONS) else "structure"
        kind = "link trait" if token.startswith(_LINK_TRAITS) else related
        return kind, _CLUE_NAMES.get(token) or token.replace("_", " ")
    if section == "names":
        return "header field", f"{token.replace('_', '-')} is there"
    if section in {"host", "id-host", "address"}:  # whose tokens have "_" for "."
        return _SECTION_KINDS[section], token.replace("-at-", "@", 1).replace("_", ".")
    usual = "structure" if section.startswith("part ") else "header field"
    kind = _SECTION_KINDS.get(section, usual)
    return kind, f"{section}: {token}" if kind in {"header field", "structure"} else token


# ---- how much to show at first

OTHERS_LABEL = "all other words"
MIN_FIRST = 25
"""Features that are shown at first, if there are so many."""
# Of the log-odds; all others together hold no more (RESULTS.md, "The rest of an explanation").
_MAX_OTHERS = 1 / 3


def count_first(parts: Sequence[float], log_odds: float) -> int:
    """How many parts to show, so that the others' sum is at most a third of the log-odds.

    Then it is at most a third of what is shown too. At least `MIN_FIRST` if there are so many.

    >>> count_first([1.0] * 90, 90.0)
    60
    """
    rest = sum(parts)
    for number, part in enumerate(parts):
        if number >= MIN_FIRST and abs(rest) <= _MAX_OTHERS * abs(log_odds):
            return number
        rest -= part
    return len(parts)


class ShownFeatures(NamedTuple):
    """Features for one look, strongest first."""

    words: Sequence[ExplainedFeature]  # made of tokens
    other_words: float  # the sum of the words that are left out
    n_others: int  # how many tokens these are
    beside: Sequence[ExplainedFeature]  # all that are no words


def choose_features(
    features: Sequence[ExplainedFeature], log_odds: float, max_words: int | None = None
) -> ShownFeatures:
    """The strongest words, and all other features, of those that `list_features` gives.

    There are at most `max_words` words for and as many against; with None as many in all as
    `count_first` says.
    """
    words = [feature for feature in features if feature.tokens]
    beside = [feature for feature in features if not feature.tokens]
    if max_words is None:
        chosen = words[: count_first([word.part for word in words], log_odds)]
    else:
        up = [word for word in words if word.part > 0][:max_words]
        down = [word for word in words if word.part < 0][:max_words]
        chosen = sorted((*up, *down), key=lambda word: -abs(word.part))
    rest = sum(word.part for word in words) - sum(word.part for word in chosen)
    tokens = sum(word.tokens for word in words) - sum(word.tokens for word in chosen)
    return ShownFeatures(chosen, rest, tokens, beside)


# ---- the sentence

_STRONG = 0.25  # of the strongest group: weaker groups are not in the sentence
_MIN_PART = 0.05  # nats; with less a group says nothing
_MAX_GROUPS = _MAX_WORDS = 3  # for, and against
_MAX_NAME_LENGTH = 40
_NAMED_KINDS = ("word", "pair", "subject", "closing", "address", "link host", "attachment")


def describe_verdict(
    why: Explanation,
    features: Sequence[ExplainedFeature],
    class_title: Callable[[str], str] = str,
    quote: Callable[[str], str] = "“{}”".format,
) -> str:
    """The verdict and its reasons in one sentence, with a few quoted words of the message."""
    groups = [group for group in sum_groups(features) if group.name not in ("start", "said")]
    groups.sort(key=lambda group: (group.name == "unkept", -abs(group.part)))
    least = max([_MIN_PART, *(_STRONG * abs(group.part) for group in groups)])
    sign = 1 if why.log_odds >= 0 else -1
    clauses: list[str] = []
    for side, name in zip((sign, -sign), (why.favoured, why.against)[::sign], strict=True):
        strong = [group.name for group in groups if side * group.part >= least][:_MAX_GROUPS]
        if not strong:
            continue
        words: list[ExplainedFeature] = []
        if not clauses:  # those of the first clause are enough
            speaking = [f for f in features if f.text and f.group in strong and f.part * side > 0]
            words = readable_words((feature, feature.kind, feature.name) for feature in speaking)
        *phrases, last = [_phrase(group, words, quote) for group in strong]
        subject = f"{', '.join(phrases)} and {last}" if phrases else last
        suffix = "" if clauses else " taught here"
        clauses.append(f"{subject} are those of {class_title(name)}{suffix}")
    if not clauses:
        clauses.append("it has hardly anything in common with the mail taught here")
    if why.sender:
        clauses.append(f"{_spoken_of(why)} was called {'wanted' if why.sender < 0 else 'unwanted'}")
    label = why.verdict.label
    if why.few:
        clauses.append("too little is taught yet")
    elif why.cautious:
        clauses.append(f"that is enough for spam once {policy.ENOUGH_HAM} good messages are known")
    elif label not in why.verdict.probabilities:
        clauses.append("that does not decide it")
    title = class_title(label)
    return f"{title[:1].upper()}{title[1:]}: {'; '.join(clauses)}."


def describe_flip(why: Explanation, class_title: Callable[[str], str] = str) -> str:
    """What would change the label, in one sentence; empty if no words would."""
    flip = why.flip
    if not flip:
        return ""
    words = "strongest word" if flip.words == 1 else f"{flip.words:,} strongest words"
    side, label = class_title(flip.speaking_for), class_title(flip.label)
    return f"Without its {words} for {side} it would be {label}."


def readable_words(described: Iterable[tuple[Said, str, str]]) -> list[Said]:
    """The first that a reader would know again in the message, no two with a word in common.

    Each stands with its kind and its name, as `describe_clue` gives them; the strongest first.
    """
    chosen: list[Said] = []
    seen: set[str] = set()
    for each, kind, name in described:
        words = name.split()
        is_short = len(name) <= _MAX_NAME_LENGTH and _GAP not in name
        is_word = kind in _NAMED_KINDS and any(map(str.isalpha, name))
        if is_short and is_word and seen.isdisjoint(words):
            seen.update(words)
            chosen.append(each)
            if len(chosen) == _MAX_WORDS:
                break
    return chosen


def _phrase(group: str, words: Sequence[ExplainedFeature], quote: Callable[[str], str]) -> str:
    names = ", ".join(quote(printable(word.name)) for word in words if word.group == group)
    return GROUPS[group].phrase + (f" ({names})" if names else "")
