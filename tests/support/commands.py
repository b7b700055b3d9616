"""Commands as processes of their own, forked from one that has loaded the program."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.support.waiting import COMMAND_SECONDS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
_one_at_a_time = threading.Lock()

_NURSERY = """
import json, os, pkgutil, sys, traceback
import spamguard, tqdm
for module in pkgutil.walk_packages(spamguard.__path__, "spamguard."):
    if not module.name.endswith(("__main__", "estimators", "naive_bayes")):  # slow, and not needed
        __import__(module.name)  # another user may not be able to read it
from spamguard.cli import main
for line in sys.stdin:
    arguments, user, files = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 70
        try:
            for number, file in enumerate(files):
                os.dup2(os.open(file, os.O_WRONLY if number else os.O_RDONLY), number)
            if user is not None:
                os.setgroups([]); os.setgid(user); os.setuid(user)
            sys.stdin = open(0)
            status = main(arguments)
            sys.stdout.flush()
        except SystemExit as error:
            status = error.code
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _nursery() -> subprocess.Popen[str]:
    """A process that has loaded everything, has nothing open, and forks for each command: most
    commands take a tenth of the time in which Python loads the program.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    atexit.register(process.communicate, timeout=COMMAND_SECONDS)
    return process


def spamguard(
    state: Path,
    *arguments: object,
    stdin: bytes = b"",
    user: int | None = None,
    kill_after: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end. user: as which, if root runs the tests. kill_after: seconds until
    it is killed.
    """
    nursery = _nursery()
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    line = ["--state", str(state), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place) / name for name in ("stdin", "stdout", "stderr")]
        for file, data in zip(files, (stdin, b"", b""), strict=True):
            file.write_bytes(data)
        as_user = user if os.geteuid() == 0 else None
        with _one_at_a_time:
            nursery.stdin.write(json.dumps([line, as_user, [*map(str, files)]]) + "\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            if kill_after is not None:
                time.sleep(kill_after)
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            status = int(nursery.stdout.readline())
        return subprocess.CompletedProcess(
            line, status, files[1].read_bytes(), files[2].read_bytes()
        )
