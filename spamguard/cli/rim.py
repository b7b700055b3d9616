"""What all commands share at their rim: the filter's directory, errors as one line, progress, colour.

Must never print to standard output what is not the command's answer, and never let an error out as a traceback.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from spamguard import log, memory, sources
from spamguard.errors import ConfigError, MemoryLimitError, SourceError, SpamguardError, UsageError, problems, remedy
from spamguard.files import LEDGER

if TYPE_CHECKING:
    from spamguard.engine import Filter
    from spamguard.settings import Settings

Item = TypeVar("Item")
Painter = Callable[[str, str], str]

ERROR = 2
CONFIG = 78  # EX_CONFIG of sysexits.h: of a service, which restarting would not mend
INTERRUPTED = 130  # 128 + SIGINT, as a shell would tell it
CUT_OFF = 141  # 128 + SIGPIPE

_HEADER = 64  # bytes of an SQLite file up to the end of its user_version (https://www.sqlite.org/fileformat.html)
_NEW = "is a new filter; another one, such as the daemon's, is named by --state or $SPAMGUARD_STATE"
_ANOTHER_USER = "run this as its owner, or as root, or change its permissions"
_MORE_MEMORY = "free some, or raise the limit on it (`ulimit -v`)"
_REMEDIES = {
    errno.ENOMEM: _MORE_MEMORY,
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EACCES: _ANOTHER_USER,
    errno.EPERM: _ANOTHER_USER,
}


# ---- errors


def guarded(run: Callable[[Item], int], given: Item) -> int:
    """Run a command; whatever goes wrong that is not a fault of the program becomes a line and an exit status."""
    _print_anything()
    logging.lastResort = _Said(logging.WARNING)
    try:
        status = run(given)
        sys.stdout.flush()
    except SpamguardError as error:
        return fail(*problems(error))
    except BrokenPipeError:
        abandon_output()
        return CUT_OFF
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError:
        return fail(f"there is not enough memory: {_MORE_MEMORY}")
    except OSError as error:
        abandon_output()
        return fail(in_words(error))
    return status


class _Terminated(KeyboardInterrupt):
    """SIGTERM came. The event loop, too, passes on what is an interrupt."""


def _terminate(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second one must not break off what the first one has begun
    raise _Terminated


@contextmanager
def tidying_up() -> Iterator[None]:
    """SIGTERM ends us as always, but not before what is done inside has put away what it made, as for an interrupt."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # other threads never see one, and it may have been told not to end us, as by `trap`
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def fail(*texts: str) -> int:
    """Say what is wrong, each in one line; the exit status for it."""
    for text in texts:
        say(text, logging.ERROR)
    return ERROR


def say(text: str, level: int = logging.INFO) -> None:
    """One line on standard error, to the person at the terminal or the journal. Names of files may hold anything: it is made printable."""
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
    with suppress(OSError):  # nobody listens: the exit status has to do
        print(f"{log.mark(os.environ, level)}spamguard: {line}", file=sys.stderr, flush=True)


class _Said(logging.Handler):
    """What is logged where nobody has asked for a log, such as a damaged file that was passed over."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line, like any other."""
        say(f"{record.levelname.lower()}: {record.getMessage()}", record.levelno)


def misconfigured(error: ConfigError) -> int:
    """Say each mistake of a configuration, in one line; the exit status for it of what is a service."""
    fail(*error.problems)
    return CONFIG


def in_words(error: BaseException) -> str:
    """An error in one line; one of the system with the remedy where there is a usual one."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    what_to_do = remedy(error, _REMEDIES.get(error.errno or 0, ""))
    return where + (error.strerror or str(error) or type(error).__name__) + (f": {what_to_do}" if what_to_do else "")


def _print_anything() -> None:
    """Words of any script and names that are no text can be printed whatever the terminal's encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def abandon_output() -> None:
    """What is still in the buffer can no longer be written: without this the interpreter would try, and complain, at its end."""
    with suppress(OSError, ValueError):
        descriptor = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


# ---- the configuration, and the filter


def reader(options: argparse.Namespace, file: Path | None, **instead: Any) -> Callable[[], Settings]:
    """What reads a configuration, now or anew, with what the command line says instead of it. ConfigError."""
    from spamguard import config

    usual_state = state_directory(options)  # as it is now: a service becomes somebody else
    return lambda: config.from_command_line(file, usual_state=usual_state, state=options.state, **instead)


def configured(options: argparse.Namespace) -> Settings:
    """What --config says. The filter in use is its filter from now on. ConfigError."""
    found = reader(options, options.config)()
    options.state = found.state
    return found


def state_directory(options: argparse.Namespace) -> Path:
    """Where the filter lies: --state, else the environment, else where XDG puts what a program has learnt."""
    if options.state is not None:
        return Path(options.state)
    if named := os.environ.get("SPAMGUARD_STATE"):
        return Path(named)
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".local" / "state") / "spamguard"
    except RuntimeError as error:
        raise UsageError("this user has no home directory: say where the filter is with --state DIR") from error


def open_filter(options: argparse.Namespace, note: str = _NEW, **settings: Any) -> Filter:
    """The filter to teach. A new one is made and told, for most often that is a slip in the path: the daemon's is another."""
    new = not has_filter(options)
    spam_filter = _open(options, **settings)
    if new:
        say(f"note: {state_directory(options)} {note}")
    return spam_filter


def open_to_ask(options: argparse.Namespace) -> Filter:
    """The filter to ask. A new one is made too, since nothing is wrong with asking early."""
    return open_filter(options, "is a new filter that was taught nothing yet")


def open_existing(options: argparse.Namespace, *, load: bool = True) -> Filter:
    """The filter whose receipts are wanted: UsageError when there is none."""
    if not has_filter(options):
        raise _no_filter(options)
    return _open(options, load=load)


def _open(options: argparse.Namespace, **settings: Any) -> Filter:
    """UsageError, too, where that would take the ledger from a daemon of an older version."""
    state = state_directory(options)
    if lacking := memory.shortage(state):
        raise MemoryLimitError(lacking)  # before numpy is loaded, which would end us without a word of ours
    from spamguard.engine import Filter

    if _is_older(state / LEDGER):
        from spamguard.cli import running

        running.refuse_another_version(state)
    return Filter.open(state, profile=options.profile, **settings)


def _is_older(ledger: Path) -> bool:
    """Whether opening brings it to today's schema: by its header, without a lock, so that it may be so no more."""
    from spamguard.ledger.migration import SCHEMA_VERSION

    if not ledger.is_file():
        return False
    with suppress(OSError), ledger.open("rb") as file:
        header = file.read(_HEADER)
        return len(header) == _HEADER and int.from_bytes(header[-4:], "big") < SCHEMA_VERSION
    return False


def existing_directory(options: argparse.Namespace) -> Path:
    """The state directory, of which more than the ledger is wanted: UsageError when there is none."""
    if not state_directory(options).is_dir():
        raise _no_filter(options)
    return state_directory(options)


def _no_filter(options: argparse.Namespace) -> UsageError:
    made = "the daemon makes a new one, or the first `spamguard learn`"
    return UsageError(f"{state_directory(options)}: no filter there: name its directory with --state; {made}")


def has_filter(options: argparse.Namespace) -> bool:
    """Whether there is a ledger in the state directory."""
    return (state_directory(options) / LEDGER).exists()


def settle_if_due(spam_filter: Filter) -> bool:
    """Settle after teaching, with a word on a terminal meanwhile; whether it was done."""
    with_note, note = _has_bars(), "settling …"
    if with_note:
        print(note, end="\r", file=sys.stderr, flush=True)
    try:
        return spam_filter.settle_if_due()
    finally:
        if with_note:
            print(" " * len(note), end="\r", file=sys.stderr, flush=True)


# ---- mail in, words out


def messages(paths: Sequence[str]) -> Iterator[sources.Message]:
    """The messages of all paths, one after another. A path that does not exist, or is empty, is a SourceError before
    anything is read."""
    for path in paths:
        if not path:
            raise SourceError("a PATH is empty, as of a variable that is not set: name what is meant; . is the directory one is in")
        if path != "-" and not Path(path).exists():
            raise SourceError(f"{path}: no such file or directory; check the path")
    return chain.from_iterable(map(sources.messages, paths))


def expected(paths: Sequence[str]) -> int | None:
    """About how many messages there will be, for a bar; None: it is not known, or there is no terminal to show one on."""
    counts = [sources.count(path) for path in paths] if _has_bars() else [None]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def with_progress(items: Iterable[Item], total: int | None, unit: str = " messages", title: str = "") -> Iterator[Item]:
    """The items, with a bar as of `progress`."""
    with progress(total, unit, title) as advance:
        for item in items:
            yield item
            advance(1)


def _has_bars() -> bool:
    return log.is_terminal(sys.stderr, os.environ)


@contextmanager
def progress(total: int | None, unit: str, title: str = "") -> Iterator[Callable[[int], object]]:
    """What is told how much work was done, in units; on a terminal it is a bar when that takes long. total: of all of it, if known."""
    if not _has_bars():
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(None, title, total, unit=unit, unit_scale=unit == "B", delay=1.0, leave=False, dynamic_ncols=True) as bar:
        yield bar.update


def answer(options: argparse.Namespace, text: str, values: object) -> None:
    """Print the answer: a text for people, or the values as JSON."""
    print(as_json(values) if options.json else text)


def as_json(values: object, indent: int | None = None) -> str:
    """JSON that comes out as JSON: where standard output is not UTF-8, which JSON is (RFC 8259, section 8.1), in ASCII."""
    as_it_is = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(values, indent=indent, ensure_ascii=not as_it_is)


def printable(text: str) -> str:
    """A text of strangers, on one line and without a word to the terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def counted(number: int, noun: str = "message") -> str:
    """`1 message`, `1,200 messages`, `2 mailboxes`."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('x') else 's'}"


def painter() -> Painter:
    """Colours words (SGR codes, "31" is red) on a terminal that has colours, and leaves them as they are elsewhere."""
    if log.has_colours(sys.stdout, os.environ):
        return lambda text, code: f"\x1b[{code}m{text}\x1b[m"
    return lambda text, code: text  # noqa: ARG005
