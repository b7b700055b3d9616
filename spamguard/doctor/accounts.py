"""Whether an account can be reached by IMAP, and what can be done with its mail there.

It logs in, lists the folders, and opens those that teach for reading only: nothing is changed on
the server, and no message is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from spamguard.config.accounts import Account, Mode, providers
from spamguard.doctor import Step, failed, ok, skipped
from spamguard.errors import SecretError
from spamguard.folders.roles import SPAM_ROLE, FolderKind, display_folder
from spamguard.imap.connection import Connection, ImapError, connect
from spamguard.imap.folders import account_folders
from spamguard.imap.status import read_status

_USEFUL = {  # capabilities, and what is without them
    "IDLE": "new mail is seen within minutes, not at once",
    "UIDPLUS": "nothing can be moved, unless it has MOVE",
}
_TOLD = ("IDLE", "MOVE", "UIDPLUS", "CONDSTORE", "QRESYNC", "OBJECTID", "X-GM-EXT-1", "SPECIAL-USE")
_MAX_FOLDERS = 30  # that are named
_MAIL_PROGRAMS = {"junk": "Thunderbird", "nonjunk": "Thunderbird", "$junk": "a mail program"}
_REMEDIES = {  # by what the system says
    "certificate": "name the server as its certificate does, and check the clock",
    "name or service|no address|getaddrinfo|resol": "check the name of the server",
    "wrong.version": "that port speaks no TLS: try --tls starttls",
    "refused|timed out|unreachable": "check server and port, and whether a firewall is between",
}


def check_account(account: Account) -> Iterator[Step]:
    """The login, the folders, and whether the account's mode is possible."""
    name = f"account {account.name}"
    try:
        with closing(connect(account)) as connection:
            has = [word for word in _TOLD if word in connection.capabilities]
            lacks = [f"no {word}: {so}" for word, so in _USEFUL.items() if word not in has]
            place = f"logged in to {account.server}:{account.usual_port} as {account.user}"
            yield ok(name, "; ".join([f"{place}, which has {', '.join(has) or 'nothing'}", *lacks]))
            yield from _check_folders(account, connection)
    except SecretError as error:
        yield failed(name, str(error), "")
    except ImapError as error:
        yield failed(name, str(error), find_remedy(account, str(error), refused=error.refused))


def find_remedy(account: Account, text: str, *, refused: bool) -> str:
    """What helps against an error. refused: it is the login that was refused."""
    if refused:  # by a mailbox of Microsoft's under a domain of one's own, too
        is_basic = re.search("basic ?auth", text, re.IGNORECASE)
        return providers()["microsoft"].refusal if is_basic else account.provider.refusal
    found = (each for pattern, each in _REMEDIES.items() if re.search(pattern, text, re.IGNORECASE))
    return next(found, "")


def _check_folders(account: Account, connection: Connection) -> Iterator[Step]:
    name = f"account {account.name}"
    folders = account_folders(account, connection.list_folders())
    folders.sort(key=lambda folder: (folder.role.kind is not FolderKind.CLASS, folder.raw))
    texts, keywords = [], frozenset[str]()
    for folder in folders[:_MAX_FOLDERS]:  # each takes a moment
        text = f"{display_folder(folder.directory)}: {folder.role.label or folder.role.kind}"
        if folder.role.kind is FolderKind.CLASS:
            found = connection.select(folder.raw, readonly=True)
            keywords |= found.known
            text += f", {found.exists:,} in it"
        texts.append(text)
    detail = "; ".join(texts)
    if any(folder.role == SPAM_ROLE for folder in folders):
        yield ok(f"{name}: folders", detail)
    else:
        remedy = "make a folder Junk with a mail program, or name yours: folders: {Bulk: spam}"
        yield failed(f"{name}: folders", f"{detail}; there is none for spam", remedy)
    yield _check_mode(account, can_move=connection.can_move)
    filters = [account.provider.filters] if account.provider.filters else []
    programs = {_MAIL_PROGRAMS[word] for word in keywords if word in _MAIL_PROGRAMS}
    filters += [
        f"{program} has marked mail as junk there: switch its filter off, or each undoes what the "
        "other does"
        for program in sorted(programs)
    ]
    if filters:
        yield skipped(f"{name}: other filters", "; ".join(filters))


def _check_mode(account: Account, *, can_move: bool) -> Step:
    """Whether the mode is possible; in look, whether `move` would be."""
    name = f"account {account.name}: {account.mode}"
    detail = f"mail {'can' if can_move else 'cannot'} be moved there"
    detail += "" if can_move else ": the server has neither MOVE nor UIDPLUS"
    if account.mode is Mode.MOVE and not can_move:
        return failed(name, detail, "write mode: flag, or look")
    return ok(name, f"nothing is written; {detail}" if account.mode is Mode.LOOK else detail)


def check_promotion(account: Account, state: Path) -> Iterator[Step]:
    """What the mode `move` would have done, of an account that only looks."""
    status = read_status(state).get(account.name)
    if account.mode is Mode.LOOK and status and status.recent:
        detail = f"of the last {status.recent} judged messages, {status.recent_spam} into Junk"
        yield ok(f"account {account.name}: move would have put", detail)
