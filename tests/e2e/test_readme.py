"""The README and the pages it links to are true: in a fresh copy of the sources the commands are
typed one after another, and do what the pages show.

Every block of a page is marked as `tested: NAME` (run or loaded here) or `shown: NAME` (the
output of the command of that name, up to numbers and names). A block without a mark fails.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from corpora import synthetic
from spamguard.cli.arguments import COMMANDS, build_parser
from spamguard.config.load import load_settings
from tests.e2e.moving import all_seen
from tests.support.sources import sources

ROOT = Path(__file__).parents[2]
PORT = 10025  # the one that `spamguard run` takes without a configuration
SECONDS = 60
PAGES = {
    name: (ROOT / name).read_text("utf-8") for name in sources(ROOT) if name.endswith("README.md")
}
README = PAGES["README.md"]
ALL_PAGES = "\n".join(PAGES.values())
_BLOCK = re.compile(
    r"^ *(?:<!-- (?P<mark>[^\n]*) -->\n)? *```(?P<kind>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
BLOCKS = [
    (found["mark"], found["kind"], dedent(found["text"])) for found in _BLOCK.finditer(ALL_PAGES)
]
TYPED = ["something to begin with", "send", "move", "sibling", "why", "commands"]
SHOWN = ["send", "move", "sibling", "why"]
AS_ROOT = ["install", "start", "dovecot", "postfix", "prove"]  # Postfix and Dovecot, step by step
AS_ROOT += ["debian package", "container"]  # steps of test_debian_package, test_container
AS_ROOT += [f"shared {step}" for step in ("database", "first node", "other nodes")]
OTHERS = [
    "accounts",
    "first command",
    "test command",
    "other tests",
    "postfix and dovecot",
    "configuration",
    "scanners",
    "folders",
    "python",
]
_SPAN = re.compile(r"`spamguard ([^`]*)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#]*)(?:#([^)]*))?\)")


def block(mark: str) -> str:
    """The block of the pages with this mark."""
    (text,) = [text for name, _, text in BLOCKS if name == mark]
    return text


def shape(text: str) -> list[str]:
    """Lines without the parts that differ between installations: numbers, ids, signatures, bars,
    the user's name, and which parts of a message a sentence about it names first.
    """
    text = re.sub(r"^(Spam|Ham): .* (are|is) those of .*", r"\1:", text, flags=re.M)
    text = re.sub(r"\b(id|k|s|user)=[\w-]+", r"\1=", text)
    text = re.sub(r"message=\w+", "message=", text)
    return [
        re.sub(r" *[-+]*$", "", re.sub(r"[-+]?\d[\d.]*", "#", line)) for line in text.splitlines()
    ]


class Terminal:
    """A shell that commands are typed into."""

    def __init__(self, place: Path, environment: dict[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            self._lines.put(line)

    def type(self, commands: str) -> str:
        """The output of the commands. AssertionError: the last one failed."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{commands}\necho finished: $?\n")
        self._shell.stdin.flush()
        told = ""
        while not (line := self._lines.get(timeout=SECONDS)).startswith("finished: "):
            told += line
        assert line == "finished: 0\n", told
        return told

    def close(self) -> None:
        """Shut it, as one shuts a window."""
        self._shell.communicate()
        self._reader.join()


@dataclass
class Running:
    """The process of the first command: its directory, its home and its output."""

    place: Path
    environment: dict[str, str]
    log: Path

    def says(self, expected: list[str]) -> bool:
        """Whether lines of this shape come."""
        until = time.monotonic() + SECONDS
        while not all(any(one in line for line in shape(self.log.read_text())) for one in expected):
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True


@contextmanager
def first_command(command: str, place: Path, environment: dict[str, str]) -> Iterator[Running]:
    """The first command of the page, until Ctrl-C."""
    log = place.with_name("log")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=place,
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 10 * SECONDS
        while f"serving smtp on 127.0.0.1:{PORT}" not in log.read_text():
            if process.poll() is not None and re.search(
                "No matching distribution|Could not find a version|onnection", log.read_text()
            ):
                pytest.skip("needs a package index that can be reached")
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield Running(place, environment, log)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(SECONDS)
        assert "stopped" in log.read_text().splitlines()[-1]
        assert "Traceback" not in log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _listens() -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", PORT)) == 0


@pytest.fixture(
    scope="module", params=["installed", pytest.param("fresh", marks=pytest.mark.nightly)]
)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """The first command, in a fresh copy of the sources and with an empty home, except for the
    configuration and cache of pip; what is installed already need not be made again.
    """
    if _listens():
        pytest.skip(f"somebody listens on port {PORT} already")
    place = tmp_path_factory.mktemp("readme") / "spamguard"
    for name in sources(ROOT):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)
    home = place.with_name("home")
    home.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPAMGUARD", "XDG", "PYTHON", "VIRTUAL"))
    }
    pip = {
        f"XDG_{kind.upper()}_HOME": str(Path.home() / f".{kind}") for kind in ("config", "cache")
    }
    command = block("tested: first command")
    if request.param == "installed":
        command = command.rpartition("&&")[2]
        (place / ".venv").symlink_to(sys.prefix)
    with first_command(command, place, {**kept, **pip, "HOME": str(home)}) as first:
        yield first


@pytest.fixture
def terminal(running: Running) -> Iterator[Terminal]:
    """A second terminal, in the same directory."""
    terminal = Terminal(running.place, running.environment)
    yield terminal
    terminal.close()


def test_five_minutes(running: Running, terminal: Terminal, tmp_path: Path) -> None:
    def typed(name: str) -> str:
        return terminal.type(
            block(f"tested: {name}").replace("/tmp/made-up-mail", str(tmp_path / "mail"))
        )

    def shown(name: str) -> list[str]:
        return shape(block(f"shown: {name}"))

    assert typed("something to begin with") == "taught 251 messages as ham, 149 messages as spam\n"
    assert shape(typed("send")) == shown("send")
    assert running.says(["Maildir: seen for the first time"])
    state = Path(running.environment["HOME"]) / ".local" / "state" / "spamguard"
    all_seen(
        state, state / "Maildir", 1
    )  # who types is not quicker; the watcher would say the same then, for another reason
    assert typed("move") == ""
    learnt = "to='Junk' class=spam message=: "
    assert running.says([learnt])
    assert learnt in shown("move")[0]
    text = typed("sibling")
    assert shape(text) == shown("sibling")
    assert "X-Spam-Flag: YES" in text
    text = typed("why")
    assert [line for line in shown("why") if line.strip() != "…" and line not in shape(text)] == []
    with urllib.request.urlopen(text.splitlines()[-1], timeout=SECONDS) as page:
        assert "Log in" in page.read().decode()
    text = typed("commands")
    assert re.search(r"^ham +0\.0\d+ +.*/00400$", text, re.M)
    assert "X-Spamguard: ham" in text
    assert "forgot 1 message\n" in text


def test_every_block_of_the_page_is_tested() -> None:
    tried = [
        *(f"tested: {option}" for option in TYPED + AS_ROOT + OTHERS),
        *(f"shown: {option}" for option in SHOWN),
    ]
    assert sorted(str(mark) for mark, *_ in BLOCKS) == sorted(tried)
    assert len(re.findall(r"^ *```", ALL_PAGES, re.M)) == 2 * len(BLOCKS)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_can_be_reached_and_its_links_lead_somewhere(page: str) -> None:
    links = {
        ((ROOT / page).parent / path).resolve() if path else ROOT / page: anchor
        for path, anchor in _LINK.findall(PAGES[page])
        if not path.startswith("https:")
    }
    for path, anchor in links.items():
        assert path.is_file(), path
        assert not anchor or anchor in _anchors(path.read_text("utf-8")), f"{path}#{anchor}"
    assert page == "README.md" or f"]({page})" in README


def _anchors(text: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_commands_that_the_pages_name_exist() -> None:
    named = {span.split()[0] for span in _SPAN.findall(ALL_PAGES)}
    assert len(named) > 15
    assert {name for name in named if name.isalpha()} <= set(COMMANDS)
    for mark in AS_ROOT:
        for line in block(f"tested: {mark}").splitlines():
            if line.startswith("spamguard "):
                words = shlex.split(line)
                build_parser(words[1:2]).parse_args(words[1:])


@pytest.mark.parametrize("mark", AS_ROOT)
def test_the_steps_as_root_use_files_that_are_there(mark: str) -> None:
    text = block(f"tested: {mark}")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for name in re.findall(r"(?<![\w/.])(?:config|systemd)/[\w./*-]+", text):
        assert list(ROOT.glob(name)), name


def test_the_configurations(tmp_path: Path) -> None:
    file, whole = tmp_path / "spamguard.yaml", block("tested: configuration")
    file.write_text(whole)
    assert [watch.maildir for watch in load_settings(file).watch] == ["/home/*/Maildir"]
    file.write_text(block("tested: postfix and dovecot"))
    assert [watch.we_file for watch in load_settings(file).watch] == [True]
    file.write_text(whole.partition("watch:")[0] + block("tested: folders"))
    assert len(load_settings(file).watch) == 2
    file.write_text(whole.partition("listeners:")[0] + block("tested: scanners"))
    assert [scanner.listen.protocol for scanner in load_settings(file).scanners] == [
        "rspamd",
        "spamd",
        "milter",
    ]


def test_python(tmp_path: Path) -> None:
    (_, raw), *more = synthetic.generate(4, 1)
    exec(
        block("tested: python"),
        {"directory": tmp_path / "state", "raw": raw, "messages": [message for _, message in more]},
    )


def test_the_files_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:config|corpora|systemd|tests|\.ci)/[\w./*-]+)`", ALL_PAGES))
    beside = re.findall(r"`((?:minimal|postfix/|dovecot/)[\w.*-]+)`", ALL_PAGES)
    named |= {f"config/{name}" for name in beside}
    assert {
        "config/spamguard.yaml",
        "config/minimal.yaml",
        "config/postfix/after-queue.*.cf",
    } <= named
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_the_commands_that_check_run_every_test_once() -> None:
    quick, slow = (
        block("tested: test command").split("&&")[-1],
        block("tested: other tests").split("&&")[-1],
    )
    for one, other in ("-n 4", "-n 5"), ('"not slow"', '"slow and not nightly"'):
        quick = quick.replace(one, other)  # the others wait more
    assert quick == slow
