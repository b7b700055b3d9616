"""Count the files and classes of the program that one message, one move and one click enter.

    python tests/walks.py

starts the real daemon with a profile function (`sys.setprofile`) in each of its processes. They
record which functions are entered between two marks, files of a directory. Functions that an idle
daemon enters as well (heartbeats, looking at the clock) do not count, nor do processes that start
meanwhile (settling). It prints a line for each walk: how many there are, their names with --names.
"""

from __future__ import annotations

import argparse
import http.cookiejar
import json
import os
import re
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # this file is run as a script

from tests.e2e import daemon, moving, web_site  # noqa: E402  needs the path, like the next two
from tests.e2e.ports import free_port  # noqa: E402
from tests.support.waiting import PATIENCE, eventually  # noqa: E402

RECORDER = """
import json, os, sys, threading, time
from pathlib import Path

place = Path(os.environ["WALKS"])
entered, recording, inside = set(), False, str(Path({root!r}) / "spamguard") + os.sep

def profile(frame, event, argument):
    if recording and event == "call":
        file, function = frame.f_code.co_filename, frame.f_code.co_qualname
        is_function = frame.f_code.co_flags & 1  # not the body of a module or a class
        if is_function and file.startswith(inside) and file.endswith(".py"):
            entered.add(f"{{file[len(inside):]}} {{function}}")

def watch():
    global recording
    mark = None
    while True:
        time.sleep(0.02)
        marks = sorted(place.glob("*.mark"))
        if not marks or marks[-1] == mark:
            continue
        mark = marks[-1]
        recording = not mark.stem.endswith("end")
        if recording:
            entered.clear()
        (place / f"{{mark.stem}}.{{os.getpid()}}.json").write_text(json.dumps(sorted(entered)))

threading.Thread(target=watch, daemon=True).start()
threading.setprofile(profile)
sys.setprofile(profile)
"""


class Recorder:
    """Marks for the processes, and what they recorded between two of them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._marks = 0
        (place / "sitecustomize.py").write_text(RECORDER.format(root=str(ROOT)))

    def mark(self, name: str) -> set[str]:
        """Set a mark and wait until each process has seen it. Return the functions entered."""
        self._marks += 1
        stem = f"{self._marks:03}-{name}"
        before = {path.stem.rpartition(".")[2] for path in self._place.glob("*.json")}
        alive = [process for process in before if Path("/proc", process).exists()]
        (self._place / f"{stem}.mark").touch()
        time.sleep(0.5)
        eventually(lambda: len(self._records(stem)) >= len(alive))
        return {
            function
            for path in self._records(stem)
            if path.suffixes[0].lstrip(".") in alive
            for function in json.loads(path.read_text())
        }

    def _records(self, stem: str) -> list[Path]:
        return [path for path in self._place.glob(f"{stem}.*.json") if path.stat().st_size]

    def record(self, run: Callable[[], object]) -> set[str]:
        """Return the functions that are entered while something runs."""
        self.mark("begin")
        run()
        return self.mark("end")


def walk(run: Callable[[], None], recorder: Recorder) -> set[str]:
    """Return the functions that a second run enters: the first one opens what stays open."""
    run()
    idle: set[str] = set()
    while not (entered := recorder.record(lambda: time.sleep(3))) <= idle:  # it still starts
        idle |= entered
    return recorder.record(run) - idle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the names of the files, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "walks").mkdir()
        recorder = Recorder(place / "walks")
        os.environ["WALKS"] = daemon.ENVIRONMENT["WALKS"] = str(place / "walks")
        daemon.ENVIRONMENT["PYTHONPATH"] = f"{place / 'walks'}:{ROOT}"
        walks = {**message_and_click(place, recorder), "a move": move(place, recorder)}
    for name, functions in walks.items():
        files = {function.partition(" ")[0] for function in functions}
        classes = {function.partition(".<")[0].rpartition(".")[0] for function in functions} - files
        classes = {each for each in classes if " " in each}
        print(f"{name}: {len(files)} files, {len(classes)} classes")
        if options.names:
            print("  ", "\n   ".join(sorted(files | classes)))


def message_and_click(place: Path, recorder: Recorder) -> dict[str, set[str]]:
    site = web_site.Site(daemon.taught(place / "state"))
    letters = iter(daemon.unseen("spam", 8))
    with site.running() as running:
        files = walk(lambda: site.send(next(letters)), recorder)
        page = Page(site.link("--user", "anna@example.net"))
        forms = iter(page.forms("/history", "/teach"))

        def click() -> None:
            lines = running.log().count("lesson")
            page.post(*next(forms))
            eventually(lambda: running.log().count("lesson") > lines)

        return {"a message": files, "a click": walk(click, recorder)}


def move(place: Path, recorder: Recorder) -> set[str]:
    box = place / "watched"
    for folder in (box, box / ".Junk"):
        for name in ("cur", "new", "tmp"):
            (folder / name).mkdir(parents=True)
    letters = daemon.unseen("spam", 4)
    for number, letter in enumerate(letters):
        (box / "cur" / f"{number}:2,S").write_bytes(letter.replace(b"\r\n", b"\n"))
    state, port = daemon.taught(place / "moves"), free_port()
    arguments = daemon.one_listener(state, port, f"maildir:{place / 'out'}", str(box))
    with daemon.running(state, *arguments, port=port) as running:
        eventually(lambda: moving.seen(state, box) == len(letters))
        numbers = iter(range(len(letters)))

        def move_one() -> None:
            lines = running.log().count("lesson")
            name = f"{next(numbers)}:2,S"
            (box / "cur" / name).rename(box / ".Junk" / "cur" / name)
            eventually(lambda: running.log().count("lesson") > lines)

        return walk(move_one, recorder)


class Page:
    """A person's browser as far as a form needs it: cookies and hidden fields."""

    def __init__(self, link: str) -> None:
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(jar)
        self._root = "{0.scheme}://{0.netloc}".format(urllib.parse.urlsplit(link))
        ((action, fields),) = self._forms(self._get(link), "/login")
        self.post(action, fields)

    def forms(self, path: str, action: str) -> list[tuple[str, dict[str, str]]]:
        return list(self._forms(self._get(self._root + path), action))

    def post(self, action: str, fields: dict[str, str]) -> str:
        data = urllib.parse.urlencode(fields).encode()
        request = urllib.request.Request(self._root + action, data, {"Origin": self._root})
        with self._opener.open(request, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def _get(self, url: str) -> str:
        with self._opener.open(url, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    @staticmethod
    def _forms(page: str, action: str) -> Iterator[tuple[str, dict[str, str]]]:
        for target, content in re.findall(
            r'<form[^>]*action="([^"]+)"[^>]*>(.*?)</form>', page, re.S
        ):
            if action in target:
                tags = re.findall(
                    r'<(?:input|button)[^>]*name="([^"]+)"[^>]*value="([^"]*)"', content
                )
                yield target, dict(tags)


if __name__ == "__main__":
    main()
