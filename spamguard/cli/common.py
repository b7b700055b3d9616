"""What all commands share: the filter, its configuration, messages, progress, output and errors.

`open_filter` finds the state directory and opens the filter there. `read_messages`
and `progress` bring mail in, `find_messages` also what the history says about messages that passed;
`print_answer` and `open_output` bring answers out. `say` writes one line to standard error;
`describe_error` makes that line of an error.

Must never print to standard output what is not the answer of the command. A file that
`open_output` writes must never have its name before it is complete, and nobody but its owner may
read it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from spamguard import log, process, sources
from spamguard.errors import MemoryLimitError, SourceError, UsageError, remedy
from spamguard.keys import is_id
from spamguard.storage import (
    LEDGER_FILE,
    as_directory_owner,
    draft_file,
    name_path_in_errors,
    sync_directory,
)

if TYPE_CHECKING:
    from tqdm import tqdm

    from spamguard.config.options import Settings
    from spamguard.doctor import Step
    from spamguard.engine.filter import Filter
    from spamguard.proxy.history import HistoryRow
    from spamguard.proxy.history_search import HistorySearch

Item = TypeVar("Item")

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

SERVICE_STATE = Path("/var/lib/spamguard")  # as systemd/spamguard.service has both
SERVICE_CONFIG = Path("/etc/spamguard/spamguard.yaml")
MEMORY_REMEDY = "free some, or raise the limit on it (`ulimit -v`)"
_ACCESS_REMEDY = "run this as its owner, or as root, or change its permissions"
_REMEDIES = {
    errno.ENOMEM: MEMORY_REMEDY,
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EACCES: _ACCESS_REMEDY,
    errno.EPERM: _ACCESS_REMEDY,
}


# ---- errors, and what people read on standard error


def say(text: str, level: int = logging.INFO) -> None:
    """Write one line to standard error, for the terminal or the journal.

    Characters that cannot be printed, as in names of files, are escaped.
    """
    line = log.printable(text, log.escape_letter)
    with suppress(OSError):  # nobody reads it: the exit status has to do
        print(f"{log.line_prefix(level)}spamguard: {line}", file=sys.stderr, flush=True)


def fail(*texts: str) -> int:
    """Say each error in a line; return the exit status."""
    for text in texts:
        say(text, logging.ERROR)
    return EXIT_ERROR


def describe_error(error: BaseException) -> str:
    """An error in one line, with the usual remedy if it comes from the system."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    advice = remedy(error, _REMEDIES.get(error.errno or 0, ""))
    text = error.strerror or str(error) or type(error).__name__
    return ": ".join(filter(None, (path, text, advice)))


def discard_output() -> None:
    """Drop the buffered output that can no longer be written.

    Otherwise the interpreter would try to write it at its end, and complain.
    """
    with suppress(OSError, ValueError):
        descriptor = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)


@contextmanager
def terminate_cleanly() -> Iterator[None]:
    """Let SIGTERM end the block as an interrupt does, with clean-up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- the configuration, and the filter


def config_reader(options: Namespace, file: Path | None) -> Callable[[], Settings]:
    """Return a function that reads the configuration; it raises ConfigError."""
    usual_state = _usual_state(options)  # as it is now: a service becomes another user

    def read() -> Settings:
        from spamguard.config import load  # when it is called: only then is pydantic needed

        return load.load_settings(file, state=options.state, usual_state=usual_state)

    return read


def load_config(options: Namespace) -> Settings:
    """Read the file of --config, and use the filter it names; ConfigError."""
    settings = config_reader(options, options.config)()
    options.state = settings.state
    return settings


def _names_filter(options: Namespace) -> bool:
    return bool(options.state or options.config or os.environ.get("SPAMGUARD_STATE"))


def choose_service(options: Namespace) -> None:
    """Where root names no other filter, take the configuration of the service on this machine."""
    if not _names_filter(options) and os.geteuid() == 0 and SERVICE_CONFIG.exists():
        options.config = SERVICE_CONFIG


def state_directory(options: Namespace) -> Path:
    """The filter's directory: of --state, of the configuration, or the usual one. ConfigError."""
    if options.state is not None:
        return Path(options.state)
    if options.config is not None:
        from spamguard.config.load import read_state

        return read_state(options.config) or _usual_state(options)
    return _usual_state(options)


def _usual_state(options: Namespace) -> Path:
    """The directory of a filter whose configuration names none."""
    if from_environment := os.environ.get("SPAMGUARD_STATE"):
        return Path(from_environment)
    if options.config == SERVICE_CONFIG:
        return SERVICE_STATE
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".local" / "state") / "spamguard"
    except RuntimeError as error:
        raise UsageError(
            "this user has no home directory: say where the filter is with --state DIR"
        ) from error


def warn_of_service(options: Namespace) -> None:
    """Say that the service on this machine has another filter, unless somebody chose this one."""
    if _names_filter(options):
        return
    try:
        is_there = (SERVICE_STATE / LEDGER_FILE).exists()
    except PermissionError:  # it belongs to the service alone, as it should
        is_there = True
    if is_there:
        say(
            f"note: {state_directory(options)} is not the filter of the service on this machine, "
            f"which is another one: name that with --state {SERVICE_STATE}, as root"
        )


def existing_state_directory(options: Namespace) -> Path:
    """The filter's directory; UsageError if there is none."""
    if not (state := state_directory(options)).is_dir():
        raise _no_filter_error(options)
    return state


@contextmanager
def open_filter(
    options: Namespace,
    *,
    must_exist: bool = False,
    scratch: bool = False,
    **settings: Any,
) -> Iterator[Filter]:
    """Open the filter that the options name.

    Parameters
    ----------
    must_exist
        UsageError where there is none. Otherwise a new one is made.
    scratch
        A new one does not stay: it is for a command that looks only.
    settings
        For `Filter.open`.
    """
    state = state_directory(options)
    is_there = (state / LEDGER_FILE).exists()
    if must_exist and not is_there:
        raise _no_filter_error(options)
    # Where memory is short, loading numpy would end the process without a message of ours.
    if shortage := process.memory_shortage():
        raise MemoryLimitError(shortage)
    from spamguard.engine.filter import Filter

    is_scratch = scratch and not is_there
    with (
        tempfile.TemporaryDirectory() if is_scratch else nullcontext(state) as place,
        Filter.open(place, profile=options.profile, **settings) as spam_filter,
    ):
        if not (is_there or is_scratch):
            # most often the path is a slip
            text = "is a new filter; another one, such as the daemon's, is named by --state"
            say(f"note: {state} {text} or $SPAMGUARD_STATE")
        yield spam_filter


@contextmanager
def stopped_daemon(state: Path) -> Iterator[None]:
    """Keep daemons from the state directory. StartError: one runs there."""
    from spamguard.daemon.status import lock_state
    from spamguard.engine import store

    store.make_state_directory(state)
    with as_directory_owner(state):
        lock = lock_state(state)
    with lock:
        yield


def _no_filter_error(options: Namespace) -> UsageError:
    return UsageError(
        f"{state_directory(options)}: no filter there: name its directory with --state; "
        "the daemon makes a new one, or the first `spamguard learn`"
    )


# ---- messages, and progress


def read_messages(paths: Sequence[str]) -> Iterator[sources.SourceMessage]:
    """The messages of all paths, one after another.

    SourceError, before anything is read, for a path that is empty or does not exist.
    """
    for path in paths:
        if not path:
            raise SourceError(
                "a PATH is empty, as of a variable that is not set: name what is meant; "
                ". is the current directory"
            )
        if path != "-" and not Path(path).exists():
            raise SourceError(f"{path}: no such file or directory; check the path")
    return chain.from_iterable(map(sources.read_messages, paths))


@contextmanager
def open_seekable(name: str) -> Iterator[BinaryIO]:
    """Open a file to read it twice; a pipe is copied to a temporary file, with a name, first."""
    with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as stream:
        if name != "-" and stream.seekable():
            yield stream
            return
        with tempfile.NamedTemporaryFile() as copy:
            with name_path_in_errors(Path(tempfile.gettempdir())):
                shutil.copyfileobj(stream, copy)
                copy.flush()
            yield cast("BinaryIO", copy)


def progress(
    items: Iterable[Item] | None = None,
    total: int | None = None,
    unit: str = " messages",
    title: str = "",
) -> tqdm[Item]:
    """A bar over the items, or to update; seen on a terminal only, if the work takes long."""
    from tqdm import tqdm

    return tqdm(
        items,
        title,
        total,
        leave=False,
        unit=unit,
        unit_scale=unit == "B",
        delay=1.0,
        disable=None,
        dynamic_ncols=True,
    )


# ---- messages that passed the daemon


_MESSAGE_NAME = re.compile("(?:message=)?([0-9a-f]{12})")  # as `log.message_name` writes it


def find_messages(
    options: Namespace,
) -> tuple[list[HistoryRow], Iterator[sources.SourceMessage]]:
    """What the history has of the ids and names of the log among the PATHs, and all other messages.

    UsageError at the first that the history does not have.
    """
    rows, paths = [], []
    for text in options.paths:
        name = _MESSAGE_NAME.fullmatch(text)
        if not (name or is_id(text)) or Path(text).exists():
            paths.append(text)
            continue
        with open_history(options, f"{text} is not known") as history:
            row = history.find_named(name[1]) if name else history.find(text)
        if row is None:
            raise UsageError(
                f"{text}: no message with that id in the history: "
                "it is another filter's, or too old, or was never judged"
            )
        rows.append(row)
    return rows, read_messages(paths)


def open_history(options: Namespace, consequence: str) -> HistorySearch:
    """The history, to look up messages in; UsageError, with the consequence, if there is none."""
    from spamguard.proxy.history import HISTORY_FILE
    from spamguard.proxy.history_search import HistorySearch

    path = state_directory(options) / HISTORY_FILE
    if not path.exists():
        raise UsageError(
            f"{path}: no history there, so {consequence}: "
            "name the state directory of the daemon with --state"
        )
    return HistorySearch.open(path)


def sender_text(author: str, sender: str) -> str:
    """The author (of the header's From), and the envelope's sender if that is another."""
    from spamguard.mail.headers import is_sender, split_author

    if author and not is_sender(author, sender):
        return f"{author}, envelope sender <{sender}>"
    return author if split_author(author)[0] else f"<{sender}>"


# ---- answers


_OUTCOMES = {"ok": "ok", "failed": "FAILED", "skipped": "-"}


def print_answer(options: Namespace, text: str, values: object) -> None:
    """Print the answer: the text for people, or the values as JSON."""
    print(_to_json(values) if options.json else text)


def print_steps(steps: Iterable[Step], *, as_json: bool = False) -> list[Step]:
    """Print what is looked at, each with the remedy if it failed; return those that failed."""
    found = []
    for step in steps:
        found.append(step)
        if not as_json:
            line = f"{_OUTCOMES[step.outcome]:7} {step.name}: {step.detail}"
            print(log.printable(line + (f" -> {step.remedy}" if step.remedy else "")), flush=True)
    failed = [step for step in found if step.outcome == "failed"]
    if as_json:
        print(_to_json({"ok": not failed, "steps": [step._asdict() for step in found]}))
    return failed


def _to_json(values: object) -> str:
    """JSON; in ASCII if standard output is not UTF-8, which JSON is (RFC 8259, section 8.1)."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(values, ensure_ascii=not is_utf8)


def count_text(number: int, noun: str = "message") -> str:
    """`1 message`, `1,200 messages`, `2 mailboxes`."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('x') else 's'}"


def is_regular_file(name: str) -> bool:
    """Whether the name is that of a regular file, or will be."""
    return name != "-" and (not Path(name).exists() or Path(name).is_file())


@contextmanager
def open_output(name: str, check: Callable[[BinaryIO], object]) -> Iterator[BinaryIO]:
    """Open a stream to write to.

    check: called with the written file, to read it, before a regular file gets its name.
    """
    path = Path(name)
    if name == "-":
        yield sys.stdout.buffer
    elif not is_regular_file(name):  # a pipe or a device is written to, never replaced
        with name_path_in_errors(path), path.open("wb") as stream:
            yield stream
    else:
        path.parent.stat()  # an error names the directory, not the draft
        # unlike with `storage.create_private`, what root writes stays with root
        opener = partial(os.open, mode=0o600)
        with draft_file(path) as draft:
            with name_path_in_errors(path), open(draft, "xb", opener=opener) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            with draft.open("rb") as written:
                check(written)
            draft.replace(path)
            sync_directory(draft.parent)
