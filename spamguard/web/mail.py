"""The mail that the page sends to users: login links, and digests of what is held and unsure.

`Mailer` hands plain text to the next hop of the first listener, in one attempt. A message goes only
to users of this filter, at their own address, whatever address a visitor writes. A visitor must not
learn whether an address is known here. So the view answers before `Mailer` looks the address up.

`DigestSender` has one clock: at an hour of one's choice by local time, on Mondays for a weekly
digest, each user who has got such mail since the last digest gets one message, with a line and a
link for each. The links open pages of a user who is logged in. An operator may get one about what
is held for all.

The file of digests remembers, for each user, which hour was dealt with and up to what time mail has
been told of. It is written before the mail goes out, so a restart never sends a digest twice. If
the next hop refuses one, the next digest tells of that mail too. If the process was down at the
hour, it sends when it starts. Of several machines that learn as one, each tells of the mail that
passed it: the calls of `Service` below go past what `nodes` adds.

Must never let a text of a stranger end a line of a message.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import localtime, make_msgid
from math import inf
from typing import Any

from spamguard.config.options import DigestPeriod, Settings, Web
from spamguard.database import Database, Schema
from spamguard.delivery.next_hop import deliver
from spamguard.delivery.smtp import create_next_hop
from spamguard.engine.policy import UNSURE
from spamguard.errors import DigestError, NotAllowedError, SpamguardError
from spamguard.log import WarnOnce, hostname, quote_value
from spamguard.proxy.history import readable
from spamguard.smtp.envelope import Client, Envelope, Recipient, Reply, Sender, client_prefix
from spamguard.storage import SPOOL_DIRECTORY, Spool, SpoolView
from spamguard.times import local_time
from spamguard.web.auth import LINK_SECONDS, CredentialKind, CredentialStore, Person, login_url
from spamguard.web.history import Search
from spamguard.web.models import MAX_ROWS, HeldMessage, Judgement
from spamguard.web.requests import RateLimiter, check_rate
from spamguard.web.service import Service

_log = logging.getLogger("spamguard.web")

LINKS_OF_USER = 3  # that are sent within an hour
LINKS_OF_CLIENT = 20  # that one client may ask for within an hour
_HOUR_SECONDS = 3600.0
_MAX_WAITING = 32  # requests for links; beyond that, they are dropped
_SEND_SECONDS = 60.0  # for the next hop to take a message

_LINK_SUBJECT = "Your link to the spam filter"
_LINK_TEXT = """\
Somebody, most likely you, asked for a link to your mail in the spam filter:

{link}

The link opens a page, and the button there logs you in. It works once,
within ten minutes.

If you did not ask for it, you can ignore this message.
"""


class Mailer:
    """Sends mail to users. Belongs to one event loop; `run` does the work.

    settings: with a listener. web: with `mail_from`.
    """

    def __init__(self, settings: Settings, web: Web, service: Service) -> None:
        self._hop, self._state = settings.listeners[0].next_hop, settings.state
        self._mail_from, self._page, self._service = web.mail_from, web.page_url, service
        self._waiting = asyncio.Queue[str](_MAX_WAITING)
        self._client_rates = RateLimiter(LINKS_OF_CLIENT, _HOUR_SECONDS)
        self._user_rates = RateLimiter(LINKS_OF_USER, _HOUR_SECONDS)

    def check_client(self, client: str) -> None:
        wait = self._client_rates.take(client_prefix(client), time.monotonic())
        check_rate(wait, "for links from this address")

    def request_link(self, address: str) -> None:
        """Send a link later, if the address is that of a user. Call it after the answer."""
        if self._waiting.full():
            _log.warning("too many requests for login links: some are dropped")
        else:
            self._waiting.put_nowait(address)

    async def run(self) -> None:
        while True:
            address = await self._waiting.get()
            try:
                await self._send_link(address)
            except (SpamguardError, OSError) as error:
                _log.error("a login link cannot be sent: %s", error)
            except Exception:  # noqa: BLE001  later links are sent all the same
                _log.exception("a fault in sending a login link")

    async def _send_link(self, address: str) -> None:
        user, mailbox = await self._service.find_user(address, self._mail_from)
        if not user or self._user_rates.take(user, time.monotonic()) > 0:
            return
        now, kind = int(time.time()), CredentialKind.LINK
        with closing(CredentialStore.open(self._state)) as store:
            secret = store.create(kind, Person(user), now, expires=now + LINK_SECONDS)
        text = _LINK_TEXT.format(link=login_url(self._page, secret))
        await self.send(mailbox, _LINK_SUBJECT, text)

    async def send(self, mailbox: str, subject: str, text: str) -> Reply:
        """Hand a message to the next hop and return its reply. OSError: no room for the message."""
        message = EmailMessage(SMTP)
        message["From"], message["To"], message["Subject"] = self._mail_from, mailbox, subject
        message["Date"] = localtime()
        message["Message-ID"] = make_msgid(domain=self._mail_from.rpartition("@")[2])
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834, section 5
        message.set_content(text, cte="quoted-printable")  # lines are short, whatever the text
        hop = create_next_hop(self._hop, hostname())
        spool = Spool(self._state / SPOOL_DIRECTORY)
        try:
            spool.write(message.as_bytes())
            # The null sender keeps bounces and automatic replies away (RFC 3834, section 3.3).
            envelope = Envelope(Sender(""), (Recipient(mailbox),), Client())
            async with asyncio.timeout(_SEND_SECONDS):
                (reply,) = await deliver(hop, envelope, SpoolView(b"", spool, 0))
        except TimeoutError:
            reply = Reply.from_text(451, "4.4.2 next hop does not answer in time")
        finally:
            await hop.close()
            spool.close()
        level = logging.INFO if reply.is_positive else logging.ERROR
        _log.log(level, "mail to=%s subject=%r: %s", quote_value(mailbox), subject, reply)
        return reply


# ---- digests

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
_DAYS = {DigestPeriod.NONE: 1, DigestPeriod.DAILY: 1, DigestPeriod.WEEKLY: 7}
_EVERYBODY = ""  # the user whose row says that an hour is dealt with for all
_OPERATORS_ROW = "@"  # the name of no user
_OPERATOR = Person("", operator=True)

_HEAD = """\
Mail for {user} since {since}: {held} held, {unsure} unsure.
The links open pages of the spam filter, where you can decide. You must be
logged in there: {page}/login
"""


def last_hour(now: float, period: DigestPeriod, hour: int) -> float:
    moment = datetime.fromtimestamp(now)
    due = moment.replace(hour=hour, minute=0, second=0, microsecond=0)
    due -= timedelta(due.weekday() if period is DigestPeriod.WEEKLY else 0)
    if due > moment:
        due -= timedelta(_DAYS[period])
    return due.timestamp()


class DigestSender:
    """Sends digests. Belongs to one event loop. web: with `mail_from`."""

    def __init__(self, web: Web, mailer: Mailer, service: Service) -> None:
        self._file = service.settings.state / DIGEST_FILE
        self._web, self._period = web, web.digest
        self._mailer, self._service = mailer, service
        self._seconds = _DAYS[self._period] * 86_400.0

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
        hour = last_hour(now, self._period, self._web.digest_hour)
        with closing(Database.open(self._file, DIGEST_SCHEMA)) as db:
            rows = db.query("SELECT hour FROM digests WHERE user = ?", (_EVERYBODY,))
            if rows and rows[0][0] < hour:
                is_told = self._period is not DigestPeriod.NONE
                for user, mailbox in await self._find_users(hour) if is_told else ():
                    await self._send(db, user, Person(user), mailbox, hour, now)
                if self._web.digest_to:
                    await self._send(db, _OPERATORS_ROW, _OPERATOR, self._web.digest_to, hour, now)
            if not rows or rows[0][0] < hour:
                _note(db, _EVERYBODY, hour, now)

    async def _find_users(self, hour: float) -> list[tuple[str, str]]:
        """The users who have got such mail, and their mailboxes."""
        since = hour - 3 * self._seconds
        held, unsure = await self._find(_OPERATOR, since, inf)
        addresses = {address for message in held for address in message.waiting}
        addresses |= {address for judgement in unsure for address in judgement.recipients}
        find, mail_from = self._service.find_user, self._web.mail_from
        users = {await find(address, mail_from) for address in addresses}
        return sorted((user, mailbox) for user, mailbox in users if user)

    async def _send(
        self, db: Database, row: str, person: Person, mailbox: str, hour: float, now: float
    ) -> None:
        rows = db.query("SELECT hour, told FROM digests WHERE user = ?", (row,))
        last, since = rows[0] if rows else (0.0, hour - self._seconds)
        if last >= hour:
            return
        _note(db, row, hour, since)
        held, unsure = await self._find(person, since, now)
        # To decide what is unsure is people's own.
        unsure = [each for each in unsure if not (person.operator or each.own or each.held)]
        if held or unsure:
            count = len(held) + len(unsure)
            subject = f"{count} message{'s' * (count != 1)} held"
            subject += "" if person.operator else " or unsure"
            text = write_digest(person, self._web.page_url, since, held, unsure)
            if (await self._mailer.send(mailbox, subject, text)).is_positive:
                _note(db, row, hour, now)

    async def _find(
        self, person: Person, after: float, upto: float
    ) -> tuple[list[HeldMessage], list[Judgement]]:
        """Return what is held and what is unsure of a person's mail."""
        held = await self._list(Service.quarantine, person, after, upto)
        unsure: list[Judgement] = []
        with suppress(NotAllowedError):
            unsure = await self._list(Service.history, person, after, upto, UNSURE)
        return [message for message in held if message.waiting], unsure

    async def _list(
        self,
        look: Callable[..., Awaitable[Any]],
        person: Person,
        after: float,
        upto: float,
        label: str = "",
    ) -> list[Any]:
        rows: list[Any] = []
        search = Search(label=label, since=after, limit=MAX_ROWS)
        while True:
            page = await look(self._service, person, search)
            rows += [row for row in page.rows if after < row.time <= upto]
            if not page.following:
                return rows
            search = replace(search, before=page.following)


def _note(db: Database, user: str, hour: float, told: float) -> None:
    with db.transaction():
        db.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", (user, hour, told))


def write_digest(
    person: Person,
    page: str,
    since: float,
    held: Sequence[HeldMessage],
    unsure: Sequence[Judgement],
) -> str:
    user = "all" if person.operator else person.name
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
                texts = (
                    local_time(row.time),
                    row.author or row.sender or "(no sender)",
                    row.subject or "(no subject)",
                    f"to {', '.join(row.recipients)}" if person.operator else "",
                    f"[{row.reason if isinstance(row, HeldMessage) else UNSURE}]",
                )
                shown = (_LINK.sub(r"\1 ", readable(text, _MAX_TEXT)) for text in texts if text)
                line = "  ".join(shown)
                lines += [line, f"  {page}/{path}/{row.id}"]
            lines.append(f"… and {len(rows) - MAX_LINES} more\n" if len(rows) > MAX_LINES else "")
    return "\n".join(lines)
