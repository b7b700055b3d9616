"""The mail that the page sends to users: login links, and what `digest` writes.

`Mailer` writes plain text and hands it to the next hop of the first listener, in one attempt. A
message goes only to users of this filter, at their own address: the name of the user, at the domain
of `mail_from` if the name has none. So nobody else gets a link, whatever address a visitor writes.

A visitor must not learn whether an address is known here. So the view answers before `Mailer`
looks the address up, and the work is done in threads and in turn, which delays no other answer.

Must never send more than a few links to one user, let a text of a stranger end a line of the
message, or keep a request waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import closing
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import localtime, make_msgid
from pathlib import Path

from spamguard.aio import run_in_thread
from spamguard.config.options import Settings, Web
from spamguard.delivery.next_hop import deliver
from spamguard.delivery.smtp import create_next_hop
from spamguard.errors import SpamguardError
from spamguard.log import hostname, quote_value
from spamguard.smtp.envelope import Client, Recipient, Reply, Sender, client_prefix
from spamguard.storage import SPOOL_DIRECTORY, Spool, SpoolView
from spamguard.web.auth import LINK_SECONDS, CredentialKind, CredentialStore, Person, login_url
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
        """Raise RefusalError if a client asks for too many links. client: its address."""
        wait = self._client_rates.take(client_prefix(client), time.monotonic())
        check_rate(wait, "for links from this address")

    def request_link(self, address: str) -> None:
        """Send a link later, if the address is that of a user. Call it after the answer."""
        if self._waiting.full():
            _log.warning("too many requests for login links: some are dropped")
        else:
            self._waiting.put_nowait(address)

    async def run(self) -> None:
        """Send the links that are asked for, until this is cancelled."""
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
        secret = await run_in_thread(_create_link, self._state, Person(user))
        text = _LINK_TEXT.format(link=login_url(self._page, secret))
        await self.send(mailbox, _LINK_SUBJECT, text)

    async def send(self, mailbox: str, subject: str, text: str) -> Reply:
        """Hand a message to the next hop and return its reply. OSError: no room for the message."""
        hop = create_next_hop(self._hop, hostname())
        transaction = hop.transaction(Client())
        spool = Spool(self._state / SPOOL_DIRECTORY)
        try:
            spool.write(compose(self._mail_from, mailbox, subject, text))
            content, recipients = SpoolView(b"", spool, 0), [Recipient(mailbox)]
            # The null sender keeps bounces and automatic replies away (RFC 3834, section 3.3).
            async with asyncio.timeout(_SEND_SECONDS):
                (reply,) = await deliver(transaction, Sender(""), recipients, content)
        except TimeoutError:
            reply = Reply.from_text(451, "4.4.2 next hop does not answer in time")
        finally:
            await transaction.end()
            await hop.close()
            spool.close()
        level = logging.INFO if reply.is_positive else logging.ERROR
        _log.log(level, "mail to=%s subject=%r: %s", quote_value(mailbox), subject, reply)
        return reply


def _create_link(state: Path, person: Person) -> str:
    now = int(time.time())
    with closing(CredentialStore.open(state)) as store:
        return store.create(CredentialKind.LINK, person, now, expires=now + LINK_SECONDS)


def compose(mail_from: str, mailbox: str, subject: str, text: str) -> bytes:
    """Write a message of plain text. mail_from, mailbox: addresses without angle brackets."""
    message = EmailMessage(SMTP)
    message["From"], message["To"], message["Subject"] = mail_from, mailbox, subject
    message["Date"] = localtime()
    message["Message-ID"] = make_msgid(domain=mail_from.rpartition("@")[2])
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834, section 5
    message.set_content(text, cte="quoted-printable")  # lines are short, whatever the text
    return message.as_bytes()
