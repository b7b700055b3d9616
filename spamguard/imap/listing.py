"""What lies in a folder: the server's list of UIDs is compared with the records, always whole.

A message gets a name that stays the same wherever it is moved: the server's own id where it has
one, else a fingerprint of what it says without a body. A UID alone names nothing.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from hashlib import blake2b

from spamguard.imap.connection import Connection, FetchedMessage
from spamguard.imap.records import FolderRow, Found, Records

_BATCH = 500  # messages that are asked for in one command
_PORTION = 5000  # messages that are written down at once when a folder is first listed
_FINGERPRINT = "RFC822.SIZE INTERNALDATE BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)]"


def list_folder(
    connection: Connection, records: Records, folder: FolderRow, uidvalidity: int, status: str
) -> set[int]:
    """Bring the records of an open folder up to date.

    Parameters
    ----------
    uidvalidity
        That of the folder as it is open.
    status
        What the server said of it before.

    Returns
    -------
    set
        The folders in which something is shown otherwise now.
    """
    item, present = connection.find_id_item(), connection.search("ALL")
    unseen, deleted = set(connection.search("UNSEEN")), set(connection.search("DELETED"))
    flags = {uid: "S" * (uid not in unseen) + "T" * (uid in deleted) for uid in present}
    listed = records.uids(folder)
    before = listed if uidvalidity == folder.uidvalidity else {}
    gone = listed.keys() - (before.keys() & flags.keys())
    changed = {uid: text for uid, text in flags.items() if before.get(uid, text) != text}
    new = [uid for uid in present if uid not in before]
    found, missing = dict[int, Found](), len(new)
    for start in range(0, len(new), _BATCH):
        batch = new[start : start + _BATCH]
        answers = connection.fetch(batch, f"UID INTERNALDATE {item}" if item else _FINGERPRINT)
        missing -= len(answers)
        for uid, answer in answers.items():
            found[uid] = _name_message(answer, item, flags[uid])
        if not folder.uidvalidity and len(found) >= _PORTION:
            records.update(folder, 0, "", found, gone, changed)
            found, gone, changed = {}, set(), {}
    # What was left out is asked for again.
    return records.update(folder, uidvalidity, "" if missing else status, found, gone, changed)


def _name_message(answer: FetchedMessage, item: str, flags: str) -> Found:
    date = answer.attribute(b"INTERNALDATE").strip(b'"')
    try:
        came = parsedate_to_datetime(date.decode("ascii").replace("-", " ", 2)).timestamp()
    except ValueError:
        came = 0.0
    known = answer.attribute(item.encode()) if item else b""
    if not known:
        message_id = b"".join(answer.literal.split()).lower()
        known = b" ".join((answer.attribute(b"RFC822.SIZE"), date, message_id))
    return Found(blake2b(known, digest_size=16).hexdigest(), came, flags)
