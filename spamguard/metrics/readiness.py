"""Next hops that mail cannot be handed on to, a line for each.

Must never wait for long: every look has its deadline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from spamguard.relay.opening import Opener
from spamguard.relay.trouble import Trouble
from spamguard.settings import Endpoint, Hop, Protocol

HOP_SECONDS = 3.0  # for a next hop to welcome us


async def unreachable(hops: Iterable[Hop], hostname: str) -> list[str]:
    """Next hops that do not welcome us, or cannot be written, in words; as `troubles`."""
    return [f"next hop {endpoint}: {trouble}" for endpoint, trouble in (await troubles(hops, hostname)).items() if trouble]


async def troubles(hops: Iterable[Hop], hostname: str) -> dict[Endpoint, str]:
    """What is wrong with each next hop, "" if nothing is. Nothing is sent but a greeting. hostname: ours."""
    different = {hop.endpoint: hop for hop in hops}
    answers = await asyncio.gather(*(_trouble(hop, hostname) for hop in different.values()))
    return dict(zip(different, answers, strict=True))


async def _trouble(hop: Hop, hostname: str) -> str:
    """What is wrong with it, "" if nothing is."""
    try:
        if hop.endpoint.protocol is Protocol.MAILDIR:
            return await asyncio.wait_for(asyncio.to_thread(_not_writable, hop.endpoint.path or Path("/")), HOP_SECONDS)
        await _greet(hop, hostname)
    except TimeoutError:
        return f"no answer within {HOP_SECONDS:.0f} s"
    except Trouble as trouble:
        return str(trouble)
    return ""


async def _greet(hop: Hop, hostname: str) -> None:
    quick = replace(hop, connect_seconds=HOP_SECONDS, command_seconds=HOP_SECONDS)
    session = await asyncio.wait_for(Opener(quick, hostname).open(), HOP_SECONDS)
    await session.quit()  # waits for a second at most


def _not_writable(maildir: Path) -> str:
    """A Maildir that is missing is made by the first message."""
    places = [place for place in (maildir / "tmp", maildir / "new") if place.exists()]
    places = places or [next(place for place in (maildir, *maildir.parents) if place.exists())]
    return "; ".join(f"{place} may not be written" for place in places if not os.access(place, os.W_OK | os.X_OK))
