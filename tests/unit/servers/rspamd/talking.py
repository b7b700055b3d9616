"""Requests and answers of rspamd's protocol, and a door for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spamguard.config.options import Protocol
from tests.support.scanners import Served, serving
from tests.support.waiting import PATIENCE

MAIL = b"Subject: x\r\nX-Spam-Flag: YES\r\nMessage-ID: <1@x.example>\r\n\r\nhello\r\n"


class Answer(NamedTuple):
    status: int
    fields: str
    body: bytes

    @property
    def json(self) -> Any:
        assert "application/json" in self.fields
        return json.loads(self.body)


def request(
    path: str,
    raw: bytes = MAIL,
    fields: Mapping[str, str] | None = None,
    method: str = "POST",
    version: str = "1.1",
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: x", f"Content-Length: {len(raw)}"]
    lines += [f"{name.rstrip('2')}: {value}" for name, value in (fields or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + raw


def parse(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    return Answer(int(head.split()[1]), head.decode(), body)


def run(directory: Path, talk: Callable[[Served], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        async with serving(directory, Protocol.RSPAMD, **settings) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


def said(directory: Path, data: bytes, **settings: Any) -> Answer:
    async def talk(served: Served) -> Answer:
        return parse(await served.say(data))

    result = run(directory, talk, **settings)
    assert isinstance(result, Answer)
    return result
