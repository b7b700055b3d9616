"""Recipients who get the same: one verdict for each group of them, where what people have said about such mail differs. Pure.

Must never leave a recipient out or put one into two groups, and never tell a person something harsher than the mildest verdict of
their group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spamguard.policy import Decision, decide
from spamguard.records import Scan, Verdict
from spamguard.settings import Policy, Rule


@dataclass(frozen=True, slots=True)
class Group:
    """What some recipients get. numbers: theirs, from 0, in order. verdict: as they are told; decision: what follows from it.

    personal: users of these recipients for whom the decision is another one than by what all have said, with their own label.
    """

    numbers: Sequence[int]
    verdict: Verdict
    decision: Decision
    personal: Mapping[str, str] = field(default_factory=dict)


class _Judged(NamedTuple):
    verdict: Verdict
    decision: Decision

    @property
    def kind(self) -> tuple[str, Rule | None]:
        """Recipients of one kind get the same."""
        return self.verdict.label, self.decision.rule


def grouped(scan: Scan, people: Sequence[str], policy: Policy, *, apart: bool) -> list[Group]:
    """The groups, first that of those for whom it is as for all. At most as many as labels times rules.

    people: for each recipient whose mail it is, a user in `scan.personal` or "". apart: whether different recipients can get
    different copies; otherwise they are one group, and the mildest verdict of all of them decides.
    """
    if not any(people):
        return [Group(range(len(people)), scan.verdict, decide(scan.verdict, policy, scan.threshold))]
    verdicts = {user: scan.personal[user] if user else scan.verdict for user in people}
    judged = {user: _Judged(verdict, decide(verdict, policy, scan.threshold)) for user, verdict in verdicts.items()}
    shared = judged.get("") or _Judged(scan.verdict, decide(scan.verdict, policy, scan.threshold))
    if not apart:
        return [_group(range(len(people)), judged, shared, _mildest(judged.values()))]
    found: dict[tuple[str, Rule | None], list[int]] = {shared.kind: []}
    for number, user in enumerate(people):
        found.setdefault(judged[user].kind, []).append(number)
    groups = []
    for numbers in filter(None, found.values()):
        theirs = {people[number]: judged[people[number]] for number in numbers}
        groups.append(_group(numbers, theirs, shared, _mildest(theirs.values())))
    return groups


def _group(numbers: Sequence[int], judged: Mapping[str, _Judged], shared: _Judged, mildest: _Judged) -> Group:
    """What these recipients get. Where that is what all get, they are told what all are told."""
    verdict, decision = shared if mildest.kind == shared.kind else mildest
    return Group(numbers, verdict, decision, {user: one.verdict.label for user, one in judged.items() if one.kind != shared.kind})


def _mildest(judged: Iterable[_Judged]) -> _Judged:
    return min(judged, key=lambda one: one.verdict.probability)
