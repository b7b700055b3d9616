"""A file given to a command that looks at it twice. Standard input and pipes are kept in a
temporary file meanwhile.

What commands say of themselves to the parser of the command line, and the types of their arguments.

What all commands share at their rim: the filter's directory, errors as one line, progress, colour.

Must never print to standard output what is not the command's answer, and never let an error out as
a traceback.

Where `export` and `backup` write to: a file has its name only when it is complete, and nobody but
its owner may read it.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

from spamguard import log, process, sources
from spamguard.errors import (
    ConfigError,
    MemoryLimitError,
    SourceError,
    SpamguardError,
    UsageError,
    error_lines,
    remedy,
)
from spamguard.storage import LEDGER_FILE, draft_file, name_path_in_errors, sync_directory

if TYPE_CHECKING:
    from spamguard.config.options import Settings
    from spamguard.engine.filter import Filter


@contextmanager
def open_seekable(name: str) -> Iterator[BinaryIO]:
    """The file; what cannot be read twice is kept in a temporary file meanwhile."""
    with nullcontext(sys.stdin.buffer) if name == "-" else _open_file(name) as stream:
        if name != "-" and stream.seekable():
            yield stream
        else:
            with _copy_to_temporary(stream) as copy:
                yield copy


def _open_file(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise SourceError(
            f"{name}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


@contextmanager
def _copy_to_temporary(stream: BinaryIO) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as copy:
        with name_path_in_errors(Path(tempfile.gettempdir())):
            shutil.copyfileobj(stream, copy)
            copy.flush()
        yield copy


Commands = Any  # what argparse's `add_subparsers` returns has no public name

PATHS_HELP = "message, mbox, Maildir, directory tree, TREC index, or - for standard input"
JSON_HELP, JSON_LINES_HELP = "answer in JSON", "answer in JSON, on a line for each message"
_MAX_COLUMNS = 130  # columns
SITE = "(the site)"  # the user "" for people


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Paragraphs no wider than the terminal; lines that begin with a blank, of lists and examples,
    stay as they are.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  as the base class has it
        lines = re.sub(r"(?<=\S)\n(?=\S)", " ", text).splitlines()
        return "\n".join(
            line if line.startswith(" ") else textwrap.fill(line, min(width, _MAX_COLUMNS))
            for line in lines
        )


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    about: str,
    example: str,
) -> argparse.ArgumentParser:
    """A command's parser: about's first sentence, on one line, goes into the list of commands, the
    example under the help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, description=about, epilog=f"example:\n{example}", formatter_class=HelpFormatter
    )
    parser.set_defaults(run=run, wrong_usage=parser.error)
    _add_common(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """What is for all commands says behind one, where most people write it first, the same as
    before it.
    """
    parser.add_argument(
        "--state",
        type=directory_argument,
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="directory of the filter (default: see `spamguard --help`)",
    )
    parser.add_argument("--profile", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_actions(parser: argparse.ArgumentParser) -> Commands:
    """Where a command's actions go, of which one must be named; `options.work` is what does it."""
    return parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)


def add_action(
    actions: Commands, name: str, work: Callable[..., int], about: str, json_about: str = JSON_HELP
) -> argparse.ArgumentParser:
    """One of several things that a command does, by `work`."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=about, description=about)
    parser.set_defaults(work=work, wrong_usage=parser.error)
    _add_common(parser)
    add_json(parser, json_about)
    return parser


def add_paths(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """The argument PATH…"""
    parser.add_argument("paths", nargs="+" if needed else "*", metavar="PATH", help=PATHS_HELP)


def add_json(parser: argparse.ArgumentParser, about: str = JSON_HELP) -> None:
    """The option --json."""
    parser.add_argument("--json", action="store_true", help=about)


def add_user(parser: argparse.ArgumentParser) -> None:
    """The option --user of those who judge."""
    parser.add_argument(
        "--user",
        type=user_argument,
        default="",
        metavar="NAME",
        help="whose mail it is: what this user has said weighs more (default: nobody's)",
    )


def directory_argument(text: str) -> Path:
    """An argument that names a directory. An empty one, as of a variable that is not set, would
    name the one we happen to be in.
    """
    return _path_argument(text, "a directory")


def file_argument(text: str) -> Path:
    """An argument that names a file."""
    return _path_argument(text, "a file")


def stream_argument(text: str) -> str:
    """An argument that names a file, or is - for standard input or output."""
    file_argument(text)
    return text


def _path_argument(text: str, what: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError(f"the name of {what} is empty")
    return Path(text)


def teacher_argument(text: str) -> str:
    """An argument that names who has taught: a user, or the site."""
    return "" if text == SITE else user_argument(text)


def user_argument(text: str) -> str:
    """An argument that names a user. Bytes that are no text are written as where a directory's name
    says whose mailbox it is.
    """
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def count_argument(text: str) -> int:
    """An argument that is a number of things."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


Item = TypeVar("Item")
Painter = Callable[[str, str], str]

EXIT_ERROR = 2
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h: of a service, which restarting would not mend
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell would tell it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

_NEW_FILTER_NOTE = (
    "is a new filter; another one, such as the daemon's, is named by --state or $SPAMGUARD_STATE"
)
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


def run_guarded(run: Callable[[Item], int], given: Item) -> int:
    """Run a command; whatever goes wrong that is not a fault of the program becomes a line and an
    exit status.
    """
    _allow_any_text()
    logging.lastResort = _StderrHandler(logging.WARNING)
    try:
        status = run(given)
        sys.stdout.flush()
    except SpamguardError as error:
        return fail(*error_lines(error))
    except BrokenPipeError:
        discard_output()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except MemoryError:
        return fail(f"there is not enough memory: {_MORE_MEMORY}")
    except OSError as error:
        discard_output()
        return fail(describe_error(error))
    return status


class _Terminated(KeyboardInterrupt):
    """SIGTERM came. The event loop, too, passes on what is an interrupt."""


def _terminate(number: int, _: object) -> NoReturn:
    signal.signal(
        number, signal.SIG_IGN
    )  # a second one must not break off what the first one has begun
    raise _Terminated


@contextmanager
def terminate_cleanly() -> Iterator[None]:
    """SIGTERM ends us as always, but not before what is done inside has put away what it made, as
    for an interrupt.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
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
    return EXIT_ERROR


def say(text: str, level: int = logging.INFO) -> None:
    """One line on standard error, to the person at the terminal or the journal. Names of files may
    hold anything: it is made printable.
    """
    line = log.printable(text, log.escape_letter)
    with suppress(OSError):  # nobody listens: the exit status has to do
        print(f"{log.line_prefix(os.environ, level)}spamguard: {line}", file=sys.stderr, flush=True)


class _StderrHandler(logging.Handler):
    """What is logged where nobody has asked for a log, such as a damaged file that was passed over."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line, like any other."""
        say(f"{record.levelname.lower()}: {record.getMessage()}", record.levelno)


def fail_config(error: ConfigError) -> int:
    """Say each mistake of a configuration, in one line; the exit status for it of what is a
    service.
    """
    fail(*error.problems)
    return EXIT_CONFIG


def describe_error(error: BaseException) -> str:
    """An error in one line; one of the system with the remedy where there is a usual one."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    what_to_do = remedy(error, _REMEDIES.get(error.errno or 0, ""))
    return (
        where
        + (error.strerror or str(error) or type(error).__name__)
        + (f": {what_to_do}" if what_to_do else "")
    )


def _allow_any_text() -> None:
    """Words of any script and names that are no text can be printed whatever the terminal's
    encoding.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """What is still in the buffer can no longer be written: without this the interpreter would try,
    and complain, at its end.
    """
    with suppress(OSError, ValueError):
        descriptor = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


# ---- the configuration, and the filter


def config_reader(
    options: argparse.Namespace, file: Path | None, **instead: Any
) -> Callable[[], Settings]:
    """What reads a configuration, now or anew, with what the command line says instead of it.
    ConfigError.
    """
    from spamguard.config.load import settings_from_command_line

    usual_state = state_directory(options)  # as it is now: a service becomes somebody else
    return lambda: settings_from_command_line(
        file, usual_state=usual_state, state=options.state, **instead
    )


def load_config(options: argparse.Namespace) -> Settings:
    """What --config says. The filter in use is its filter from now on. ConfigError."""
    found = config_reader(options, options.config)()
    options.state = found.state
    return found


def state_directory(options: argparse.Namespace) -> Path:
    """Where the filter lies: --state, else the environment, else where XDG puts what a program has
    learnt.
    """
    if options.state is not None:
        return Path(options.state)
    if named := os.environ.get("SPAMGUARD_STATE"):
        return Path(named)
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".local" / "state") / "spamguard"
    except RuntimeError as error:
        raise UsageError(
            "this user has no home directory: say where the filter is with --state DIR"
        ) from error


def open_filter(
    options: argparse.Namespace, note: str = _NEW_FILTER_NOTE, **settings: Any
) -> Filter:
    """The filter to teach. A new one is made and told, for most often that is a slip in the path:
    the daemon's is another.
    """
    new = not has_filter(options)
    spam_filter = _open_filter(options, **settings)
    if new:
        say(f"note: {state_directory(options)} {note}")
    return spam_filter


def open_for_judging(options: argparse.Namespace) -> Filter:
    """The filter to ask. A new one is made too, since nothing is wrong with asking early."""
    return open_filter(options, "is a new filter that was taught nothing yet")


def open_existing(options: argparse.Namespace, *, load: bool = True) -> Filter:
    """The filter whose receipts are wanted: UsageError when there is none."""
    if not has_filter(options):
        raise _no_filter_error(options)
    return _open_filter(options, load=load)


def _open_filter(options: argparse.Namespace, **settings: Any) -> Filter:
    state = state_directory(options)
    if lacking := process.memory_shortage(state):
        raise MemoryLimitError(
            lacking
        )  # before numpy is loaded, which would end us without a word of ours
    from spamguard.engine.filter import Filter

    return Filter.open(state, profile=options.profile, **settings)


def existing_state_directory(options: argparse.Namespace) -> Path:
    """The state directory, of which more than the ledger is wanted: UsageError when there is none."""
    if not state_directory(options).is_dir():
        raise _no_filter_error(options)
    return state_directory(options)


def _no_filter_error(options: argparse.Namespace) -> UsageError:
    made = "the daemon makes a new one, or the first `spamguard learn`"
    return UsageError(
        f"{state_directory(options)}: no filter there: name its directory with --state; {made}"
    )


def has_filter(options: argparse.Namespace) -> bool:
    """Whether there is a ledger in the state directory."""
    return (state_directory(options) / LEDGER_FILE).exists()


def settle_if_due(spam_filter: Filter) -> bool:
    """Settle after teaching, with a word on a terminal meanwhile; whether it was done."""
    with_note, note = _shows_progress(), "settling …"
    if with_note:
        print(note, end="\r", file=sys.stderr, flush=True)
    try:
        return spam_filter.settle_if_due()
    finally:
        if with_note:
            print(" " * len(note), end="\r", file=sys.stderr, flush=True)


# ---- mail in, words out


def read_messages(paths: Sequence[str]) -> Iterator[sources.SourceMessage]:
    """The messages of all paths, one after another. A path that does not exist, or is empty, is a
    SourceError before anything is read.
    """
    for path in paths:
        if not path:
            raise SourceError(
                "a PATH is empty, as of a variable that is not set: name what is meant; . is the directory one is in"
            )
        if path != "-" and not Path(path).exists():
            raise SourceError(f"{path}: no such file or directory; check the path")
    return chain.from_iterable(map(sources.read_messages, paths))


def expected_count(paths: Sequence[str]) -> int | None:
    """About how many messages there will be, for a bar; None: it is not known, or there is no
    terminal to show one on.
    """
    counts = [sources.count_messages(path) for path in paths] if _shows_progress() else [None]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def with_progress(
    items: Iterable[Item], total: int | None, unit: str = " messages", title: str = ""
) -> Iterator[Item]:
    """The items, with a bar as of `progress`."""
    with progress(total, unit, title) as advance:
        for item in items:
            yield item
            advance(1)


def _shows_progress() -> bool:
    return log.is_terminal(sys.stderr, os.environ)


@contextmanager
def progress(total: int | None, unit: str, title: str = "") -> Iterator[Callable[[int], object]]:
    """What is told how much work was done, in units; on a terminal it is a bar when that takes
    long. total: of all of it, if known.
    """
    if not _shows_progress():
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(
        None,
        title,
        total,
        unit=unit,
        unit_scale=unit == "B",
        delay=1.0,
        leave=False,
        dynamic_ncols=True,
    ) as bar:
        yield bar.update


def print_answer(options: argparse.Namespace, text: str, values: object) -> None:
    """Print the answer: a text for people, or the values as JSON."""
    print(to_json(values) if options.json else text)


def to_json(values: object, indent: int | None = None) -> str:
    """JSON that comes out as JSON: where standard output is not UTF-8, which JSON is (RFC 8259,
    section 8.1), in ASCII.
    """
    as_it_is = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(values, indent=indent, ensure_ascii=not as_it_is)


def count_text(number: int, noun: str = "message") -> str:
    """`1 message`, `1,200 messages`, `2 mailboxes`."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('x') else 's'}"


def painter() -> Painter:
    """Colours words (SGR codes, "31" is red) on a terminal that has colours, and leaves them as
    they are elsewhere.
    """
    if log.supports_colours(sys.stdout, os.environ):
        return lambda text, code: f"\x1b[{code}m{text}\x1b[m"
    return lambda text, code: text  # noqa: ARG005  as the other one


def is_regular_file(name: str) -> bool:
    """Whether it is, or will be, a regular file."""
    return name != "-" and (not Path(name).exists() or Path(name).is_file())


def output_directory(name: str) -> Path:
    """Where a file is to be made. UsageError: it cannot be."""
    found = Path(name).parent
    if not found.is_dir():
        raise UsageError(f"{found}: there is no such directory: make it, or name another file")
    try:
        tempfile.TemporaryFile(dir=found).close()
    except OSError as error:
        what_to_do = remedy(error, "give us the right to, or name another file")
        raise UsageError(
            f"{found}: no file can be made there ({error.strerror}): {what_to_do}"
        ) from error
    return found


@contextmanager
def open_output(
    name: str, check: Callable[[BinaryIO], object] = lambda _: None
) -> Iterator[BinaryIO]:
    """A stream to write to. check: is given what was written to a regular file, to be read, before
    the file has its name.
    """
    path = Path(name)
    if name == "-":
        yield sys.stdout.buffer
    elif not is_regular_file(name):  # a pipe or a device is written as it is, never replaced
        with name_path_in_errors(path), path.open("wb") as stream:
            yield stream
    else:
        with draft_file(output_directory(name) / path.name) as draft:
            with name_path_in_errors(path), open(draft, "xb", opener=_open_private) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            with draft.open("rb") as written:
                check(written)
            draft.replace(path)
            sync_directory(draft.parent)


def _open_private(name: str, flags: int) -> int:
    """For us alone, unlike `files.create_private`: what root writes must not be given to whoever
    owns the directory.
    """
    return os.open(name, flags, 0o600)
