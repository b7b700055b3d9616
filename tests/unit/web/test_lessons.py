"""Uploaded messages are judged, explained, taught and forgotten as elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spamguard.config.options import Scoring
from spamguard.errors import BusyError, UsageError
from spamguard.mail.message import rewrite_header
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.records import Verdict
from spamguard.web import service as services
from spamguard.web.history import Search
from spamguard.web.models import Opinion
from spamguard.web.service import Service
from tests.unit.filters import opened
from tests.unit.proxy.scorers import ODD_COMMAND
from tests.unit.web.office import (
    ANNA,
    MAIL,
    OPERATOR,
    asked,
    digest,
    name,
    serving,
    settings,
    spooled,
    votes,
)

pytestmark = pytest.mark.slow  # waits for seconds

NEW = [raw for _, raw in MAIL[100:]]


def verdict_of(opinion: Opinion) -> Verdict:
    return Verdict(opinion.label, opinion.probability, opinion.log_odds, opinion.probabilities)


def test_it_is_judged_and_explained_as_elsewhere(state: Path) -> None:
    async def work(service: Service) -> None:
        opinion = await service.judge(ANNA, spooled(state, NEW[0]))
        why = await service.explain(ANNA, spooled(state, NEW[0]))
        with opened(state) as spam_filter:
            expected = spam_filter.explain(NEW[0])
        assert verdict_of(opinion) == why.verdict == expected.verdict
        assert (opinion.digest, opinion.taught, opinion.own) == (digest(NEW[0]), "", "")
        assert why.log_odds == expected.log_odds
        named = [clue for clue in why.clues if clue.text]
        assert len(named) > 16  # more than a log line tells
        assert {(clue.text, clue.part) for clue in named} <= {
            (clue.text, clue.part) for clue in expected.clues
        }

    asked(state, work)


def test_our_subject_prefix_does_not_change_the_message(state: Path) -> None:
    raw = NEW[0].replace(b"\n", b"\r\n")
    head, replaced = rewrite_header(raw, [b"X-Spam-Flag: YES"], (), b"[SPAM]")
    marked = head + raw[replaced:]
    assert b"[SPAM]" in marked

    async def work(service: Service) -> None:
        first = await service.learn(OPERATOR, spooled(state, raw), "spam")
        assert (await service.judge(OPERATOR, spooled(state, marked))).taught == "spam"
        assert (await service.learn(OPERATOR, spooled(state, marked), "spam")) == first.__class__(
            first.digest, "spam", False, "spam", first.now
        )

    asked(state, work)
    with opened(state) as spam_filter:
        assert not spam_filter.learn(raw, "spam")


def test_the_first_lesson_of_all(tmp_path: Path) -> None:
    (tmp_path / "new" / "spool").mkdir(parents=True)

    async def work(service: Service) -> None:
        assert (await service.classes()) == {"ham": False, "spam": True}
        assert (await service.history(OPERATOR, Search())).rows == []
        assert (await service.judge(ANNA, spooled(tmp_path / "new", NEW[0]))).label == "unsure"
        assert (await service.learn(ANNA, spooled(tmp_path / "new", NEW[0]), "spam")).changed

    asked(tmp_path / "new", work)


def test_no_message_and_no_class(state: Path) -> None:
    async def work(service: Service) -> None:
        with pytest.raises(UsageError, match="is not a class here"):
            await service.learn(ANNA, spooled(state, NEW[0]), "news")
        for text in ("", "zz" * 16, "00" * 15, "00" * 17, "é" * 32, "0x" + "00" * 15):
            with pytest.raises(UsageError, match="not a message digest"):
                await service.forget(ANNA, text)

    asked(state, work)


def test_a_judgement_that_took_too_long_may_go_well_next_time(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "ScorerPool", partial(ScorerPool, command=ODD_COMMAND))
    configuration = settings(state, scoring=Scoring(0.05, 1))

    async def work(service: Service) -> None:
        for call in (
            service.judge(ANNA, spooled(state, b"HANG 1")),
            service.learn(ANNA, spooled(state, b"HANG 2"), "spam"),
        ):
            with pytest.raises(BusyError, match=r"cannot be judged now \(timeout\)"):
                await call

    asked(configuration, work)


def test_a_message_that_crashes_scorers_is_refused_for_good_only_when_it_comes_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "ScorerPool", partial(ScorerPool, command=ODD_COMMAND))

    async def work(service: Service) -> None:
        with pytest.raises(BusyError, match=r"cannot be judged now \(crashed\)"):
            await service.judge(ANNA, spooled(state, b"CRASH"))
        with pytest.raises(UsageError, match=r"this message cannot be judged \(poison\)"):
            await service.judge(ANNA, spooled(state, b"CRASH"))
        assert (await service.judge(ANNA, spooled(state, NEW[0]))).label

    asked(state, work)


@pytest.mark.parametrize(
    "call",
    [
        lambda service: service.delete(ANNA, name(0)),
    ],
)
def test_operations_for_operators_only(state: Path, call: Callable[[Service], Any]) -> None:
    before = votes(state)
    with pytest.raises(Exception, match="only operators"):
        asked(state, call)
    assert votes(state) == before


def test_damaged_tables_request_a_rebuild(state: Path) -> None:
    """Where only page and API judge, no other process would ask for it."""
    for table in state.glob("tables-*.bin"):
        table.write_bytes(b"damaged")
    settled: list[int] = []

    async def run() -> None:
        async with serving(settings(state), settled) as service:
            with pytest.raises(BusyError, match="no-model"):
                await service.judge(ANNA, spooled(state, NEW[0]))

    asyncio.run(run())
    assert settled
