"""What views have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from spamguard.errors import BusyError
from spamguard.web.pages import house
from spamguard.web.service.contract import Service
from spamguard.web.service.values import Person
from tests.unit.web.pages.fixed import ANNA, Fixed, Gate


class Slow(Fixed):
    """Takes its time over classes once it has told them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.go_on = asyncio.Event()

    async def classes(self, person: Person) -> Mapping[str, bool]:
        self.asked += 1
        if self.asked > 1:
            await self.go_on.wait()
            self.taught_classes = {**self.taught_classes, "newsletter": False}
        return await super().classes(person)


def test_only_the_first_page_waits_for_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "_CLASSES_KEPT", 0.0)

    async def run() -> None:
        slow = Slow()
        found = house.House(cast(Service, slow), slow.monitor, Gate())
        for _ in range(5):
            assert list(await found.classes(ANNA)) == ["ham", "spam"]
            await asyncio.sleep(0)
        assert slow.asked == 2
        slow.go_on.set()
        await asyncio.sleep(0.01)
        assert list(await found.classes(ANNA)) == ["ham", "spam", "newsletter"]

    asyncio.run(run())


def test_trouble_is_told_to_the_first_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "_CLASSES_KEPT", 0.0)

    class Troubled(Fixed):
        ill = True

        async def classes(self, person: Person) -> Mapping[str, bool]:
            if self.ill:
                raise BusyError("too much at once")
            return await super().classes(person)

    async def run() -> None:
        service = Troubled()
        found = house.House(cast(Service, service), service.monitor, Gate())
        with pytest.raises(BusyError):
            await found.classes(ANNA)
        service.ill = False
        assert await found.classes(ANNA)
        service.ill = True
        for _ in range(3):
            assert await found.classes(ANNA)
            await asyncio.sleep(0)

    asyncio.run(run())
