"""The queue of unsure mail: its order, its groups, and words about several messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from spamguard.errors import NotAllowedError
from spamguard.keys import RANDOM_BYTES, new_id
from spamguard.web.auth import Person
from spamguard.web.models import JudgementDetails, LessonReceipt
from spamguard.web.views import group_messages
from tests.unit.web.fixed import NOW, OPERATOR, Fixed, judgement
from tests.unit.web.test_views import post, shown

HOUR = 3600.0


def unsure(number: int, hours: float = 0.0, **values: Any) -> JudgementDetails:
    """The message with this number, so many hours old, unlike all others."""
    usual: dict[str, Any] = {
        "label": "unsure",
        "probability": 0.5,
        "time": NOW - hours * HOUR,
        "subject": f"Subject {number}",
        "message": f"{number:012}",
    }
    return replace(judgement(new_id(NOW - number, bytes(RANDOM_BYTES))), **usual | values)


def test_messages_alike_are_one_group() -> None:
    """By digest, or by both senders and subject; the digest of a message gets one vote."""
    one, copy = unsure(1), replace(unsure(2), message=unsure(1).message)
    alike = unsure(3, subject="SUBJECT 1")
    others = [
        unsure(4, subject="Subject 1", sender="else@b.example"),
        unsure(5, subject="Subject 1", author="Else <a@b.example>"),
        unsure(6, subject=""),
        unsure(7, subject=""),
        unsure(8, subject="None", author="", sender=""),
        unsure(9, subject="None", author="", sender=""),
    ]
    first, *rest = group_messages([one, copy, alike, *others])
    assert first.messages == [one, copy, alike]
    assert first.ids == [one.id, alike.id]
    assert [group.messages for group in rest] == [[other] for other in others]


def test_one_word_teaches_the_group_and_all_that_is_selected(tmp_path: Path) -> None:
    first, second, third = (unsure(number).id for number in range(3))
    service = Fixed()
    form = {first: f"{first} {second}", third: third, "class": "ham"}
    page = post(service, tmp_path, "/queue?q=solar", form, follow=True)
    assert page.history[0].headers["location"].startswith("/queue?q=solar&told=")
    taught = [(call[0], call[2], call[3]) for call in service.calls]
    assert taught == [("learn_passed", name, "ham") for name in (first, second, third)]
    assert "Learnt as ham: 3 messages." in shown(page)
    assert f'name="ids" value="{first} {second} {third}"' in page.text
    service.calls.clear()
    post(service, tmp_path, "/queue", {third: third, "spam": f"{first} {second}"})  # of a row
    assert [(call[2], call[3]) for call in service.calls] == [(first, "spam"), (second, "spam")]
    service.calls.clear()
    undone = post(service, tmp_path, "/queue/undo", {"ids": f"{first} {second}"}, follow=True)
    assert [call[0] for call in service.calls] == ["forget_passed"] * 2
    assert "Taken back: 2 lessons." in shown(undone)


def test_what_was_taught_before_an_error_is_told_and_can_be_undone(tmp_path: Path) -> None:
    class Limited(Fixed):
        async def learn_passed(self, person: Person, name: str, label: str) -> LessonReceipt:
            if self.calls:
                raise NotAllowedError("that is the limit of a day")
            return await super().learn_passed(person, name, label)

    first, second = unsure(1).id, unsure(2).id
    page = post(Limited(), tmp_path, "/queue", {"spam": f"{first} {second}"}, follow=True)
    assert "Learnt as spam: 1 message. Not done for 1 message: that is the limit" in shown(page)
    assert f'name="ids" value="{first}"' in page.text


# ---- the quarantine


def test_selected_held_mail_is_released_or_deleted_after_a_second_click(tmp_path: Path) -> None:
    first, second = unsure(1).id, unsure(2).id
    service, chosen = Fixed(), {first: first, second: second}
    page = post(service, tmp_path, "/quarantine", {**chosen, "do": "release"}, follow=True)
    assert "Released: 2 messages." in shown(page)
    assert service.calls == [("release", "anna", first), ("release", "anna", second)]
    service.calls.clear()
    ask = post(service, tmp_path, "/quarantine", {**chosen, "do": "ask"})
    assert "Delete 2 messages for good?" in shown(ask)
    assert [f'name="{name}" value="{name}"' in ask.text for name in chosen] == [True, True]
    assert service.calls == []
    form = {**chosen, "do": "delete"}
    gone = post(service, tmp_path, "/quarantine", form, follow=True, person=OPERATOR)
    assert "Deleted: 2 messages" in shown(gone)
    assert service.calls == [("delete", "", first), ("delete", "", second)]
    service.changed = False
    page = post(service, tmp_path, "/quarantine", {first: first, "do": "release"}, follow=True)
    assert "Released: 0 messages. The next hop has not taken 1 message" in shown(page)
    for form in ({"do": "release"}, {**chosen, "do": "burn"}):
        assert post(service, tmp_path, "/quarantine", form).status_code == 422
