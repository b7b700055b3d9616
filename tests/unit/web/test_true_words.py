"""Pages claim nothing untrue where little is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spamguard.config.options import Action
from spamguard.engine.policy import missing_lessons
from spamguard.errors import NotAllowedError, NotThereError
from spamguard.records import Clue
from spamguard.web.auth import Person
from spamguard.web.formatting import action_text
from spamguard.web.models import (
    Class,
    HeldMessageDetails,
    Hour,
    Model,
    Today,
    User,
)
from tests.unit.web.fixed import NAME, NOW, OPERATOR, OTHER, Fixed, judgement
from tests.unit.web.test_views import get, post


def test_words_that_say_nothing_are_not_said_to_be_forgotten(tmp_path: Path) -> None:
    """As all are before the first lesson."""
    service = Fixed()
    service.reasons = replace(
        service.reasons,
        clues=[Clue("solar", 0.0, {"ham": 0, "spam": 0}), Clue("", 0.0, {"ham": 0, "spam": 0})],
    )
    page = get(service, tmp_path, f"/history/{NAME}")[0].text
    assert "None of its words adds anything" in page
    assert "text not kept" not in page
    service.reasons = replace(service.reasons, clues=[Clue("", 0.5, {"ham": 0, "spam": 1})])
    assert "text not kept" in get(service, tmp_path, f"/history/{NAME}")[0].text


def test_data_that_is_not_kept_is_called_not_kept(tmp_path: Path) -> None:
    """`history: {private: true}`: the message had a subject all the same, and
    came from somewhere.
    """
    service = Fixed([judgement(subject="", sender="", author="", recipients=(), client="")])
    for page in get(service, tmp_path, "/history", f"/history/{NAME}"):
        told = page.text.partition("<main")[2]
        assert all(
            words in told
            for words in ("(no subject known)", "(no sender known)", "(no recipients known)")
        )
        assert "this machine" not in told


def test_it_says_why_all_is_unsure(tmp_path: Path) -> None:
    """As at first; later, of a message or two, it is no sign of that."""

    class Unsure(Fixed):
        lessons = 2

        async def today(self, person: Person, hours: int = 24) -> Today:
            return Today([Hour(NOW, {"unsure": 3}, 0, 0)], 3, 0, ())

        async def model(self, person: Person) -> Model:
            classes = {"ham": Class(self.lessons, unwanted=False), "spam": Class(60, unwanted=True)}
            lacking = missing_lessons({"ham": self.lessons, "spam": 60}, frozenset(("spam",)))
            return replace(await super().model(person), classes=classes, missing=lacking)

    service = Unsure()
    assert "Everything is unsure until 3 good messages" in get(service, tmp_path, "/")[0].text
    service.lessons = 60
    assert (
        "Only plain spam is called spam, the rest is unsure: 60 of 500 good messages"
        in get(service, tmp_path, "/")[0].text
    )
    service.lessons = 500
    assert "is unsure" not in get(service, tmp_path, "/")[0].text


def test_of_very_many_teachers_some_are_shown(tmp_path: Path) -> None:
    """With ten thousand of them the page had three megabytes."""

    class Many(Fixed):
        async def model(self, person: Person) -> Model:
            users = [
                User(f"user{number}@example.net", {"spam": 1}, NOW) for number in range(10_000)
            ]
            return replace(await super().model(person), users=users)

    (page,) = get(Many(), tmp_path, "/", person=OPERATOR)
    assert len(page.content) < 100_000
    assert "user0@example.net" in page.text
    assert "9,800 others" in page.text
    assert "others before" not in get(Fixed(), tmp_path, "/", person=OPERATOR)[0].text


def test_only_a_failed_post_is_asked_to_be_sent_again(tmp_path: Path) -> None:
    again = "send it again"
    assert again not in get(Fixed(), tmp_path, "/nowhere")[0].text
    assert again in post(Fixed(), tmp_path, "/queue", {"class": "x"}).text


def test_a_forbidden_page_names_what_is_still_possible(tmp_path: Path) -> None:
    """Where no addresses are kept, only operators can see more after logging in."""
    (page,) = get(
        Fixed(failure=NotAllowedError("no addresses are kept here")), tmp_path, "/history"
    )
    assert page.status_code == 403
    assert "You can still" in page.text
    assert 'begin at <a href="/">' not in page.text


def test_results_are_described_in_words(tmp_path: Path) -> None:
    service = Fixed(
        [
            judgement(action="tag", reply="250 Ok"),
            judgement(OTHER, label="not-scanned", action="", reply="451 Later"),
        ]
    )
    tagged, unjudged = (
        page.text for page in get(service, tmp_path, f"/history/{NAME}", f"/history/{OTHER}")
    )
    assert "<dt>Action</dt><dd>tagged</dd>" in tagged
    assert "<dt>Reply of the next hop</dt><dd><bdi>250 Ok</bdi></dd>" in tagged
    assert "<dt>Action</dt>" not in unjudged
    assert "<dt>Reply of the next hop</dt><dd><bdi>451 Later</bdi></dd>" in unjudged
    for action in Action:
        assert action_text(action) != str(action)


def test_deleted_mail_does_not_redirect_in_a_circle(tmp_path: Path) -> None:
    """The history still links to mail that was deleted from the quarantine."""

    class Deleted(Fixed):
        async def held(self, person: Person, name: str) -> HeldMessageDetails:
            raise NotThereError("no message with that verdict id is held here, or it is not yours")

    page = get(Deleted(), tmp_path, f"/quarantine/{NAME}")[0].text
    assert "It may have been deleted." in page


def test_tables_of_nothing_are_left_out(tmp_path: Path) -> None:
    """As before the first lesson, when nothing adds anything."""
    service = Fixed()
    nothing = {
        "log_odds": 0.0,
        "prior": 0.0,
        "shares": {},
        "scores": {},
        "clues": [],
        "traits": {},
        "numbers": {},
        "biases": 0.0,
    }
    service.reasons = replace(service.reasons, **nothing)
    page = get(service, tmp_path, f"/history/{NAME}")[0].text
    assert "All features" in page
    assert "<table" not in page.partition("why-groups")[2]
