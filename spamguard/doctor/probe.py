"""The probe: a marked message goes in where mail comes in, and must be judged once and filed.

Its Message-ID is signed with the installation's key (`keys.make_probe_id`). By that the doors call
this one message spam and tag it, whatever they know and whatever the rules say, and the folder
watcher lets it teach nothing. It is looked for in the mailbox of its recipient: only files that
came since are opened. The history says how often it was judged, and whether results of
authentication are believed that a stranger has written; its header by whom it was judged, its
folder whether spam is filed.

Must never leave the message behind, let a mail server send a bounce, or touch any other message.
"""

from __future__ import annotations

import os
import smtplib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import NamedTuple

from spamguard import keys
from spamguard.config.options import HostPort, Settings
from spamguard.doctor import Step, StepOutcome, failed, ok, skipped
from spamguard.doctor.proof import FROM_ADDRESS, make_message
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.folders.maildir import (
    Folder,
    LocalMailboxes,
    Mailbox,
    MessageFile,
    file_key,
    iter_files,
)
from spamguard.folders.roles import SPAM_ROLE, display_folder, role_lookup
from spamguard.proxy.history import HISTORY_FILE, HistoryRow
from spamguard.proxy.history_search import HistoryFilter, HistorySearch
from spamguard.storage import directory_owner

ARRIVAL_SECONDS = 30.0
_SERVER_SECONDS = 60.0  # for each answer of the mail server, which may wait for us before the queue
_AGAIN_SECONDS = 2.0  # in which a second copy, or a second judgement, would come
_POLL_SECONDS = 0.2
_MAX_BYTES = 256 << 10
_MAX_ROWS = 1000  # of the history
_FILING_REMEDY = (
    "let Dovecot deliver, with Sieve (config/dovecot, lmtp.conf and file-by-header.sieve), or let "
    "the server file by X-Spam-Flag; or write `we_file: false`, if mail programs shall"
)


class Arrival(NamedTuple):
    """A copy of the probe in a mailbox, and its header."""

    folder: Folder
    file: MessageFile
    header: Message


def try_mail(
    spam_filter: Filter,
    settings: Settings,
    special_uses: Mapping[tuple[str, ...], str],
    mailbox: Mailbox,
    recipient: str,
    server: HostPort,
) -> Iterator[Step]:
    """Send a probe, and say what becomes of it.

    special_uses: of folders, as Dovecot names them. mailbox: where the recipient's mail comes, by
    its number in `watch`.
    """
    started = time.time()
    key = keys.derive_key(spam_filter.key, b"verdict")
    name = keys.make_probe_id(key, started, os.urandom(keys.RANDOM_BYTES))
    raw, believed = make_message(name), settings.authserv_ids[:1]
    for authority in believed:  # a field in its name, as a stranger can write one
        domain = FROM_ADDRESS.partition("@")[2]
        results = f"Authentication-Results: {authority}; dmarc=pass header.from={domain}\n"
        raw = results.encode() + raw
    digest = ExampleReader(spam_filter.key).digest(raw)
    with closing(LocalMailboxes(settings.watch, notify=False)) as mailboxes:
        inbox = _ProbedMailbox(mailboxes, mailbox, name)
        try:
            sent = _send(raw, recipient, server)
            yield sent
            if sent.outcome is not StepOutcome.OK:
                return
            arrivals = inbox.wait()
            rows = _find_rows(spam_filter.directory, digest, started)
            yield _check_judgements(key, digest, arrivals, len(rows))
            for authority in believed if rows else ():
                if any(row.sender_digest for row in rows):
                    detail = f"what a stranger writes as the results of {authority} is believed"
                    remedy = "let the mail server remove such fields from mail that comes in"
                    yield failed("authentication", detail, remedy)
                else:
                    detail = f"results that a stranger writes as {authority} are not believed"
                    yield ok("authentication", detail)
            if arrivals:
                watch = settings.watch[mailbox.watch]
                role = role_lookup(watch, special_uses)
                folders = {arrival.folder.directory for arrival in arrivals}
                names = " and ".join(sorted(map(display_folder, folders)))
                detail = f"what is tagged as spam comes into {names}"
                if all(role(folder) == SPAM_ROLE for folder in folders):
                    yield ok("filing", detail)
                elif watch.we_file is False:
                    yield skipped("filing", f"{detail}: nothing files it")
                else:
                    yield failed("filing", detail, _FILING_REMEDY)
        finally:
            inbox.remove()
    if list(spam_filter.ledger.users.votes_on_message(digest)):
        yield failed("removal", "the message was learnt", "spamguard undo --since 1h")
    else:
        yield ok("removal", "the message was removed, and nothing was learnt from it")


def _send(raw: bytes, recipient: str, server: HostPort) -> Step:
    """Hand the message to the mail server, with the null sender, to whom nothing bounces."""
    try:
        with smtplib.SMTP(timeout=_SERVER_SECONDS) as client:
            client.connect(server.host, server.port)
            client.sendmail("", [recipient], raw.replace(b"\n", b"\r\n"))
    except ConnectionRefusedError:
        return skipped("mail", f"no mail server is at {server}: name one with --smtp")
    except (OSError, smtplib.SMTPException) as error:
        detail = f"the server at {server} does not take a message to {recipient}: {error}"
        return failed("mail", detail, "see its log, or name another recipient with --to")
    return ok("mail", f"sent to {recipient} at {server}")


def _find_rows(state: Path, digest: bytes, since: float) -> list[HistoryRow]:
    if not (state / HISTORY_FILE).exists():
        return []
    with HistorySearch.open(state / HISTORY_FILE) as history:
        rows = history.find_page(HistoryFilter(since=since), _MAX_ROWS).rows
    return [row for row in rows if row.digest == digest]


def _check_judgements(key: bytes, digest: bytes, arrivals: Sequence[Arrival], rows: int) -> Step:
    step = "judgement"
    if len(arrivals) != 1 or rows > 1:
        detail = f"it came {len(arrivals)} times, and was judged {rows} times"
        remedy = (
            "look for its Message-ID in the log of the mail server, and into its queue; what comes "
            "back must not go to spamguard again: see config/postfix, config/exim"
        )
        return failed(step, detail, remedy)
    values = arrivals[0].header.get_all("X-Spamguard", [])
    if not values:
        remedy = "let the mail server pass its mail to spamguard: `spamguard setup`"
        return failed(step, "it came, but nobody has judged it", remedy)
    if len(values) > 1:
        return failed(step, f"it has {len(values)} verdicts", "let one spamguard judge it")
    signed = keys.verify_verdict(key, str(values[0]).encode(errors="replace"), digest)
    if signed is None or signed.label != "spam":
        detail = f"it was not judged as spam by this filter: {values[0]}"
        return failed(step, detail, "see the log of the daemon")
    once = "judged once" if rows else "judged, how often the history does not say"
    return ok(step, f"{once}, by this filter, and tagged as spam (id={signed.id})")


class _ProbedMailbox:
    """The mailbox in which the probe shall arrive. name: its Message-ID."""

    def __init__(self, mailboxes: LocalMailboxes, mailbox: Mailbox, name: str) -> None:
        self._mailboxes = mailboxes
        self._mailbox = mailbox
        self._owner = directory_owner(Path(mailbox.path))
        self._name = name
        with self._owner.impersonate():
            self._other_names = frozenset(file_key(file.name) for _, file in self._list_files())

    def _list_files(self) -> list[tuple[Folder, MessageFile]]:
        files: list[tuple[Folder, MessageFile]] = []
        for folder in self._mailboxes.list_folders(self._mailbox):
            with suppress(FileNotFoundError):
                names = self._mailboxes.list_files(folder)
                files += [(folder, file) for file in iter_files(names)]
        return files

    def find(self) -> list[Arrival]:
        found = []
        with self._owner.impersonate():
            for folder, file in self._list_files():
                if file_key(file.name) in self._other_names:
                    continue
                with (
                    suppress(FileNotFoundError),
                    os.fdopen(self._mailboxes.open_file(folder, file), "rb") as stream,
                ):
                    header = message_from_bytes(stream.read(_MAX_BYTES))
                    if str(header["Message-ID"]).strip() == self._name:
                        found.append(Arrival(folder, file, header))
        return found

    def wait(self) -> list[Arrival]:
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while not self.find() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        time.sleep(_AGAIN_SECONDS)
        return self.find()

    def remove(self) -> None:
        with self._owner.impersonate():
            for folder, file, _ in self.find():
                path = Path(self._mailbox.path, folder.directory, file.part, file.name)
                path.unlink(missing_ok=True)
