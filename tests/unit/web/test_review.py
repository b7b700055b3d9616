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
from tests.unit.web.fixed import NOW, Fixed, judgement
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


def test_what_was_taught_before_an_error_is_told_and_can_be_undone(tmp_path: Path) -> None:
    class Limited(Fixed):
        async def learn_passed(self, person: Person, name: str, label: str) -> LessonReceipt:
            if self.calls:
                raise NotAllowedError("that is the limit of a day")
            return await super().learn_passed(person, name, label)

    first, second = unsure(1).id, unsure(2).id
    page = post(Limited(), tmp_path, "/queue", {"class": f"spam {first} {second}"}, follow=True)
    assert "Learnt as spam: 1 message. Not done for 1 message: that is the limit" in shown(page)
    assert f'name="class" value=" {first}"' in page.text
