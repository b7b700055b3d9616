"""The digest: mail that tells each user, once a day or week, what is held and what is unsure.

The web process has one clock: at `HOUR` by local time, on Mondays for a weekly digest, it finds the
users who have got such mail since their last digest. Each gets one message through `Mailer`, with a
line and a link for each message. A link opens a page of a user who is logged in; buttons act there.

The file of digests remembers, for each user, which hour was dealt with and up to what time mail has
been told of. It is written before the mail goes out, so a restart never sends a digest twice. If
the next hop refuses one, the next digest tells of that mail too. If the process was down at the
hour, it sends when it starts. A new file waits for the next hour.

Of several machines that learn as one, each tells of the mail that passed it: the calls of `Service`
below go past what `nodes` adds.

Must never send anything when there is nothing to tell, let a text of a stranger end its line, or
tell a user of another user's mail.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from spamguard.config.options import DigestPeriod, Web
from spamguard.database import Database, Schema
from spamguard.engine.policy import UNSURE
from spamguard.errors import DigestError, NotAllowedError, SpamguardError
from spamguard.log import WarnOnce
from spamguard.proxy.history import readable
from spamguard.times import local_time
from spamguard.web.auth import Person
from spamguard.web.mailer import Mailer
from spamguard.web.models import MAX_ROWS, HeldMessage, Judgement
from spamguard.web.queries import Search
from spamguard.web.service import Service

_log = logging.getLogger("spamguard.web")

HOUR = 6
DIGEST_FILE = "digests.sqlite"
DIGEST_SCHEMA = Schema(
    kind="digests",
    error=DigestError,
    application_id=0x7367_6467,  # "sgdg"
    version=1,
    wal=False,
    tables="""
CREATE TABLE digests (user TEXT PRIMARY KEY, hour REAL NOT NULL, told REAL NOT NULL) WITHOUT ROWID;
""",
)
MAX_LINES = 50  # messages of each kind in one digest
_MAX_TEXT = 80  # characters of a sender or a subject
_LINK = re.compile(r"(://|www\.)", re.IGNORECASE)  # what mail programs make a link of
_POLL_SECONDS = 30.0
_DAYS = {DigestPeriod.DAILY: 1, DigestPeriod.WEEKLY: 7}
_EVERYBODY = ""  # the user whose row says that an hour is dealt with for all
_OPERATOR = Person("", operator=True)

_HEAD = """\
Mail for {user} since {since}: {held} held, {unsure} unsure.
The links open pages of the spam filter, where you can decide. You must be
logged in there: {page}/login
"""


def last_hour(now: float, period: DigestPeriod) -> float:
    """Return the last time at which digests were due. now: seconds since 1970."""
    moment = datetime.fromtimestamp(now)
    due = moment.replace(hour=HOUR, minute=0, second=0, microsecond=0)
    due -= timedelta(due.weekday() if period is DigestPeriod.WEEKLY else 0)
    if due > moment:
        due -= timedelta(_DAYS[period])
    return due.timestamp()


class DigestSender:
    """Sends digests. Belongs to one event loop. web: with `mail_from`."""

    def __init__(
        self, state: Path, web: Web, period: DigestPeriod, mailer: Mailer, service: Service
    ) -> None:
        self._file, self._web, self._period = state / DIGEST_FILE, web, period
        self._mailer, self._service = mailer, service
        self._seconds = _DAYS[period] * 86_400.0

    async def run(self) -> None:
        """Send digests whenever they are due, until this is cancelled."""
        errors = WarnOnce(_log, logging.ERROR)
        while True:
            try:
                await self.send_due(time.time())
                errors.clear()
            except (SpamguardError, OSError) as error:
                errors.report("digests cannot be sent: %s; trying again", error)
            except Exception:  # noqa: BLE001  it is tried again
                _log.exception("a fault in sending digests")
            await asyncio.sleep(_POLL_SECONDS)

    async def send_due(self, now: float) -> None:
        """Send the digests that are due, if any. DigestError: the file cannot be used."""
        hour = last_hour(now, self._period)
        with closing(Database.open(self._file, DIGEST_SCHEMA)) as db:
            rows = db.query("SELECT hour FROM digests WHERE user = ?", (_EVERYBODY,))
            if rows and rows[0][0] < hour:
                users = await self._find_users(hour - 3 * self._seconds)
                for user, mailbox in sorted(users.items()):
                    await self._send(db, user, mailbox, hour, now)
            if not rows or rows[0][0] < hour:
                _note(db, _EVERYBODY, hour, now)

    async def _find_users(self, since: float) -> dict[str, str]:
        """Return users with mail to tell of, each with the own address."""
        addresses: set[str] = set()
        async for held in self._held(_OPERATOR, since):
            addresses.update(held.waiting)
        async for judgement in self._unsure(_OPERATOR, since):
            addresses.update(judgement.recipients)
        users = [
            await self._service.find_user(address, self._web.mail_from)
            for address in sorted(addresses)
        ]
        return {user: mailbox for user, mailbox in users if user}

    async def _send(self, db: Database, user: str, mailbox: str, hour: float, now: float) -> None:
        rows = db.query("SELECT hour, told FROM digests WHERE user = ?", (user,))
        last, since = rows[0] if rows else (0.0, hour - self._seconds)
        if last >= hour:
            return
        _note(db, user, hour, since)
        person = Person(user)
        held = [row async for row in self._held(person, since) if row.time <= now]
        ids = {row.id for row in held}
        unsure = [
            row
            async for row in self._unsure(person, since)
            if row.time <= now and not row.own and row.id not in ids
        ]
        if held or unsure:
            count = len(held) + len(unsure)
            subject = f"{count} message{'s' * (count != 1)} held or unsure"
            text = write_digest(user, self._web.page_url, since, held, unsure)
            if (await self._mailer.send(mailbox, subject, text)).is_positive:
                _note(db, user, hour, now)

    async def _held(self, person: Person, since: float) -> AsyncIterator[HeldMessage]:
        """Yield what waits in the quarantine for a person, newest first."""
        search = Search(limit=MAX_ROWS)
        while True:
            page = await Service.quarantine(self._service, person, search)
            for message in page.messages:
                if message.time <= since:
                    return
                if message.waiting:
                    yield message
            if not page.following:
                return
            search = replace(search, before=page.following)

    async def _unsure(self, person: Person, since: float) -> AsyncIterator[Judgement]:
        """Yield a person's unsure messages, newest first; none where no addresses are kept."""
        search = Search(label=UNSURE, since=since, limit=MAX_ROWS)
        while True:
            try:
                page = await Service.history(self._service, person, search)
            except NotAllowedError:
                return
            for judgement in page.judgements:
                if judgement.time > since:
                    yield judgement
            if not page.following:
                return
            search = replace(search, before=page.following)


def _note(db: Database, user: str, hour: float, told: float) -> None:
    with db.transaction():
        db.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", (user, hour, told))


def write_digest(
    user: str,
    page: str,
    since: float,
    held: Sequence[HeldMessage],
    unsure: Sequence[Judgement],
) -> str:
    """Write the text of a digest. page: the page's address. since: seconds since 1970."""
    values = {"user": user, "page": page, "since": local_time(since)}
    lines = [_HEAD.format(**values, held=len(held), unsure=len(unsure))]
    parts: Sequence[tuple[str, str, Sequence[HeldMessage | Judgement]]] = (
        ("Held, not delivered: {page}/quarantine", "quarantine", held),
        ("Unsure, delivered: {page}/queue", "history", unsure),
    )
    for title, path, rows in parts:
        if rows:
            lines += [title.format(page=page), ""]
            for row in rows[:MAX_LINES]:
                lines += [_line(row), f"  {page}/{path}/{row.id}"]
            lines.append(f"… and {len(rows) - MAX_LINES} more\n" if len(rows) > MAX_LINES else "")
    return "\n".join(lines)


def _line(message: HeldMessage | Judgement) -> str:
    texts = (
        local_time(message.time),
        message.author or message.sender or "(no sender)",
        message.subject or "(no subject)",
        f"[{message.reason if isinstance(message, HeldMessage) else UNSURE}]",
    )
    return "  ".join(_LINK.sub(r"\1 ", readable(text, _MAX_TEXT)) for text in texts)
