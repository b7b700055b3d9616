"""Judging in processes of its own that can be killed: a message that hangs or crashes a scorer costs that scorer, nothing else.

Must never let a message wait for ever, let one message hold up the others, or start processes without bound.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from spamguard import log
from spamguard.installed import ReplacedError
from spamguard.proxy.contract import NotScanned
from spamguard.proxy.process import Process, Work
from spamguard.records import Scan
from spamguard.relay.threads import finished
from spamguard.settings import Scoring
from spamguard.spool import Spool
from spamguard.timed import Timed

COMMAND = (sys.executable, "-P", "-m", "spamguard.proxy.scorer")
WORDS = 8  # each way: as many as history and log tell
_SPARES = 2  # scorers above the usual number, while others are stuck
_STUCK = 0.5  # seconds at one message after which a scorer no longer counts as able to judge others
_STARTING = 60.0  # seconds that a scorer may take to open the filter, and twice as many after each start that failed,
_DOUBLINGS = 4  # so often at most: a slow machine would never have one
_AGAIN = 1.0  # seconds between attempts to start scorers that end before they are ready
_WAITING = 30.0  # seconds that a message waits for a free scorer
_TOGETHER = 8  # messages given to a scorer in one go,
_BYTES_TOGETHER = 256 << 10  # if they are small
_POISON = 2  # times that a message may harm a scorer
_POISONOUS = 3600.0  # seconds since the last time: the machine may have been too slow, and mail that is put off needs a verdict one day
_REMEMBERED = 1000  # messages that did

_log = logging.getLogger("spamguard.proxy")


class _Harm(NamedTuple):
    """What a message has done to scorers. last: a time of the event loop's clock."""

    times: int
    last: float


_NO_HARM = _Harm(0, 0.0)


class ScorerPool:
    """Scorers of one worker (`contract.Judge`). one_wrong_in: as in `settings.Policy`. command: what is run as a scorer.

    words: how many of the strongest they tell each way.
    """

    def __init__(self, state: Path, scoring: Scoring, one_wrong_in: int = 0, command: Sequence[str] = COMMAND, words: int = WORDS) -> None:
        self._seconds = scoring.seconds
        self._usual = scoring.scorers
        self._command, self._arguments = command, (str(one_wrong_in), str(words), str(state))
        self._scorers: dict[Process, _Care] = {}
        self._queue: deque[Work] = deque()
        self._harm: OrderedDict[bytes, _Harm] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._starts_after = 0.0
        self._failed_starts = 0  # one after the other
        self._trouble = log.Repeated(_log)  # why none can be started
        self._replaced = False  # and none ever will be

    async def start(self) -> None:
        """Start the usual number of scorers; they become ready by themselves."""
        self._fill()

    async def close(self) -> None:
        """End all scorers; what still waits is answered."""
        self._closing = True
        for scorer in list(self._scorers):
            scorer.kill()
        self._give_up()
        while self._tasks:
            await asyncio.gather(*self._tasks)

    @property
    def able(self) -> bool:
        """Whether a scorer has opened the filter, or tried to, and takes messages."""
        return any(scorer.ready and not scorer.ended for scorer in self._scorers)

    @property
    def lost(self) -> bool:
        """Whether nobody judges here any more, or ever will: another spamguard is installed by now."""
        return self._replaced and not self._scorers

    async def judge(self, message: Spool, on_top: bytes, users: Sequence[str] = ()) -> Scan | NotScanned:
        """What a scorer makes of it, or why none does; as in `contract.Judge`."""
        try:
            if self._harm and self._is_poison(await _fingerprint(message)):
                return NotScanned("poison")
            return await self._judged(Work(message, on_top, users, asyncio.get_running_loop().create_future()))
        except OSError as error:
            _log.error("a message cannot be read to be judged: %s", error)
            return NotScanned("unreadable")

    def _is_poison(self, name: bytes) -> bool:
        times, last = self._harm.get(name, _NO_HARM)
        return times >= _POISON and asyncio.get_running_loop().time() - last < _POISONOUS

    async def _judged(self, work: Work) -> Scan | NotScanned:
        if self._closing:
            return NotScanned("stopping")
        self._queue.append(work)
        self._dispatch_or_give_up()
        if not self._queue:  # it is being judged: that has a deadline of its own
            return await work.done
        limit = asyncio.get_running_loop().call_later(_WAITING, partial(self._waited, work))
        try:
            return await work.done
        finally:
            limit.cancel()

    def _waited(self, work: Work) -> None:
        with suppress(ValueError):  # it is being judged
            self._queue.remove(work)
            work.finish(NotScanned("busy"))

    # ---- who judges what

    def _dispatch(self) -> None:
        """Give what waits to who is free."""
        for scorer in list(self._scorers):
            if scorer.ready and not scorer.works and not scorer.ended and (works := self._next()):
                self._give(scorer, works)
        if self._queue:
            self._fill()

    def _dispatch_or_give_up(self) -> None:
        """What waits is answered if there are no scorers, as they end as soon as they start, or cannot be started: the next attempt is
        due later."""
        self._dispatch()
        if not self._scorers:
            self._give_up()

    def _give(self, scorer: Process, works: list[Work]) -> None:
        self._scorers[scorer].begin()
        try:
            scorer.give(works)
        except OSError as error:
            self._scorers[scorer].rest()
            _log.error("messages cannot be read to be judged: %s", error)
            for work in works:
                work.finish(NotScanned("unreadable"))

    def _next(self) -> list[Work]:
        """The first that waits, and more of them if all are small."""
        works: list[Work] = []
        size = 0
        while self._queue and len(works) < _TOGETHER:
            work = self._queue[0]
            size += work.message.size
            if works and (size > _BYTES_TOGETHER or work.message.descriptor is not None):
                break
            self._queue.popleft()
            if not work.done.done():  # else nobody waits any more
                works.append(work)
            if work.message.descriptor is not None:
                break
        return works

    def _fill(self) -> None:
        """As many scorers as are usual; while messages wait, those that are stuck at one are not counted."""
        if self._closing or asyncio.get_running_loop().time() < self._starts_after:
            return
        wanted = self._usual - (self._able() if self._queue else len(self._scorers))
        for _ in range(min(wanted, self._usual + _SPARES - len(self._scorers))):
            try:
                scorer = Process(self._command, self._arguments, self._changed)
            except OSError as error:
                self._trouble.tell("a scorer cannot be started: %s", error)
                self._replaced = isinstance(error, ReplacedError)
                self._later()
                return
            self._trouble.over()
            starting = _STARTING * 2 ** min(self._failed_starts, _DOUBLINGS)
            self._scorers[scorer] = _Care(scorer, starting, self._seconds, partial(self._stuck, scorer))

    def _able(self) -> int:
        return sum(not care.stuck for care in self._scorers.values())

    def _later(self) -> None:
        loop = asyncio.get_running_loop()
        self._starts_after = loop.time() + _AGAIN
        if not self._closing:
            loop.call_at(self._starts_after + 0.01, self._fill)

    # ---- what becomes of scorers

    def _changed(self, scorer: Process) -> None:
        """It is ready, has answered, or has ended."""
        if scorer.ended:
            self._ended(scorer)
            return
        self._failed_starts = 0
        if scorer.works:
            self._scorers[scorer].begin()
        else:
            self._scorers[scorer].rest()
            if self._able() > self._usual and not self._queue:
                scorer.kill()
            else:
                self._dispatch()

    def _ended(self, scorer: Process) -> None:
        care = self._scorers.pop(scorer)
        care.forget_deadline()
        self._track(scorer.gone())
        if scorer.works and not self._closing:
            _log.error("scorer %d %s while judging a message of %d bytes", scorer.number, care.ending, scorer.works[0].message.size)
        if scorer.works:
            self._track(self._ended_at(scorer.works.popleft(), scorer, care))
            self._take_back(list(scorer.works))
        if not scorer.ready:
            self._failed_start()
        self._fill()
        self._dispatch_or_give_up()

    def _failed_start(self) -> None:
        """Once is an accident: the next one starts at once, and what waits goes on waiting."""
        self._failed_starts += 1
        if self._failed_starts > 1:
            self._later()

    def _stuck(self, scorer: Process) -> None:
        """What was given to it behind the message it is at may be judged by others: who answers first counts."""
        self._take_back(list(scorer.works)[1:])
        self._dispatch()

    def _take_back(self, works: list[Work]) -> None:
        taken = set(self._queue)
        for scorer, care in self._scorers.items():
            taken.update(islice(scorer.works, 1 if care.stuck else None))
        self._queue.extendleft(reversed([work for work in works if not work.done.done() and work not in taken]))

    async def _ended_at(self, work: Work, scorer: Process, care: _Care) -> None:
        """The message that a scorer ended at is suspected, unless the disk is to blame."""
        await scorer.gone()
        if scorer.lost_its_tables:
            _log.error("scorer %d could not read the tables (SIGBUS): their disk is full or broken: make room on it", scorer.number)
            work.finish(NotScanned("no-model"))
        else:
            await self._harmed(work, care)

    async def _harmed(self, work: Work, care: _Care) -> None:
        """Remember the message that a scorer ended at; then another has it once, if the first died on the spot, else it is answered."""
        times, loop = _POISON, asyncio.get_running_loop()
        with suppress(OSError):  # nobody waits any more, and the message is gone
            name = await _fingerprint(work.message)
            times = self._harm.pop(name, _NO_HARM).times + (not self._closing)
            self._harm[name] = _Harm(times, loop.time())
            while len(self._harm) > _REMEMBERED:
                self._harm.popitem(last=False)
        if times < _POISON and care.died_at_once and not self._closing:
            self._queue.appendleft(work)
            loop.call_later(_WAITING, self._waited, work)
            self._dispatch_or_give_up()
        else:
            work.finish(NotScanned("stopping" if self._closing else care.ending))

    def _give_up(self) -> None:
        while self._queue:
            self._queue.popleft().finish(NotScanned("stopping" if self._closing else "crashed"))

    def _track(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Care(Timed):
    """The clock of one scorer. stuck: at a message for so long that it cannot be counted on. ending: why it ended, if it has."""

    def __init__(self, scorer: Process, starting: float, seconds: float, on_stuck: Callable[[], None]) -> None:
        self.stuck = False
        self.ending = "crashed"
        self._scorer = scorer
        self._seconds = seconds
        self._on_stuck = on_stuck
        self._allow(starting)

    @property
    def died_at_once(self) -> bool:
        """Whether its message has cost hardly any of its time: the accident may be none of the message's."""
        return self.ending == "crashed" and not self.stuck

    def begin(self) -> None:
        """It begins with a message."""
        self.stuck = False
        self._allow(min(_STUCK, self._seconds))

    def rest(self) -> None:
        """It has nothing to do."""
        self.stuck = False
        self.lift_deadline()

    def deadline_passed(self) -> None:
        """A message takes it long, and then too long; or it does not become ready."""
        if self._scorer.works and not self.stuck:
            self.stuck = True
            self._allow(max(self._seconds - _STUCK, 0.0))
            self._on_stuck()
        else:
            self.ending = "timeout"
            self._scorer.kill()

    def _allow(self, seconds: float) -> None:
        self.set_deadline(asyncio.get_running_loop().time() + seconds)


async def _fingerprint(message: Spool) -> bytes:
    """Which bytes these are. OSError when they cannot be read."""
    return _hash(message) if message.descriptor is None else await finished(partial(_hash, message))


def _hash(message: Spool) -> bytes:
    state = blake2b(digest_size=16)
    for chunk in message.chunks():
        state.update(chunk)
    return state.digest()
