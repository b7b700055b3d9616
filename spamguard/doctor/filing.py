"""Whether what we tag as spam is filed into Junk, where Dovecot delivers: asks `doveconf`, and looks into the scripts that it names.

What people's own rules do cannot be seen from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from spamguard.doctor.asking import said
from spamguard.doctor.step import Step, failed, ok, skipped
from spamguard.settings import Protocol, Settings

_SCRIPT = re.compile(r"^\s*(?:sieve_(?:before|after|default)\w*|path)\s*=\s*(?:file:)?(/[^;\s]+)", re.MULTILINE)
_SIEVE = re.compile(r"^\s*(?:mail_plugins\s*=.*\bsieve\b|sieve\s*=\s*yes)", re.MULTILINE)
_LONGEST = 1 << 20  # bytes of a script that are looked at


def steps(settings: Settings, configuration: str = "") -> Iterator[Step]:
    """Nothing where no mailboxes are watched, where we file ourselves, or without Dovecot. configuration: its file, if not the usual."""
    if not settings.watch or any(one.next_hop.endpoint.protocol is Protocol.MAILDIR for one in settings.listeners):
        return
    told = said("doveconf", "-n", *(("-c", configuration) if configuration else ()))
    if not told:
        return
    if script := next((path for path in map(Path, _SCRIPT.findall(told)) if _files(path)), None):
        yield ok("filing", f"{script} files what is tagged as spam")
        return
    text = "what is tagged as spam stays in INBOX, unless people's own rules file it: Dovecot runs "
    text += "no script for all that asks for X-Spam-Flag" if _SIEVE.search(told) else "no Sieve where it delivers"
    expected = any(watch.we_file for watch in settings.watch)
    remedy = "see config/dovecot, lmtp.conf and file-by-header.sieve"
    yield failed("filing", text, remedy) if expected else skipped("filing", f"{text} ({remedy})")


def _files(path: Path) -> bool:
    """Whether it is a script, or a directory of such, that files by our header."""
    with suppress(OSError):
        scripts = sorted(path.glob("*.sieve")) if path.is_dir() else [path]
        return any(re.search(r"(?i)X-Spam-", text) and "fileinto" in text for text in map(_text, filter(Path.is_file, scripts)))
    return False


def _text(script: Path) -> str:
    with script.open(errors="replace") as file:
        return file.read(_LONGEST)
