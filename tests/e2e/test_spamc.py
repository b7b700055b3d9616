"""SpamAssassin's own client, with our daemon in the place of spamd. Debian builds it without zlib:
other tests cover `Compress`.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.scanning import HAM, IN_FORCE_SECONDS, SPAM, ScannerSite, site
from tests.support.waiting import COMMAND_SECONDS, eventually

pytestmark = pytest.mark.skipif(
    shutil.which("spamc") is None, reason="needs spamc: apt-get install spamc"
)

TEACHERS = "    teachers: [127.0.0.1]\n"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScannerSite]:
    with site(tmp_path_factory.mktemp("spamc"), "spamd", TEACHERS, personal=True) as running:
        yield running


def spamc(where: ScannerSite, *arguments: str, raw: bytes = b"") -> tuple[int, bytes]:
    """Exit status and output. -F /dev/null: no configuration of this machine."""
    command = ["spamc", "-F", "/dev/null", "-d", "127.0.0.1", "-p", str(where.port), *arguments]
    done = subprocess.run(
        command, input=raw, capture_output=True, timeout=COMMAND_SECONDS, check=False
    )
    return done.returncode, done.stdout


def test_ping(here: ScannerSite) -> None:
    assert spamc(here, "-K")[0] == 0


def test_verdicts(here: ScannerSite) -> None:
    for raw, code in ((SPAM[0], 1), (HAM[0], 0)):
        status, output = spamc(here, "-c", raw=raw)
        score, _, required = output.decode().strip().partition("/")
        assert (status, required) == (code, "5.0")
        assert (float(score) >= 5.0) is bool(code)
        assert spamc(here, "-E", raw=raw)[0] == code
        assert (spamc(here, "-y", raw=raw)[1].strip() == b"SPAMGUARD_SPAM") is bool(code)
        assert b"points of 5.0 required" in spamc(here, "-R", raw=raw)[1]
        assert (b"spamguard: spam" in spamc(here, "-r", raw=raw)[1]) is bool(code)


def test_a_message_comes_back_but_for_our_fields(here: ScannerSite) -> None:
    raw = b"X-Spam-Status: No, score=-99.0\r\n" + SPAM[1] + b"\x00\xff bare\rcr and\nlf\r\n"
    status, output = spamc(here, raw=raw)
    flag, verdict, signed, rest = output.split(b"\r\n", 3)
    assert (status, flag, rest) == (0, b"X-Spam-Flag: YES", raw.partition(b"\r\n")[2])
    assert verdict.startswith(b"X-Spam-Status: Yes, score=")
    assert signed.startswith(b"X-Spamguard: spam; id=")
    _, headers = spamc(
        here, "--headers", raw=SPAM[1]
    )  # puts the header section it gets before the body it has
    assert headers.startswith(b"X-Spam-Flag: YES\r\n")
    assert headers.endswith(SPAM[1])
    _, unix = spamc(here, raw=SPAM[1].replace(b"\r\n", b"\n"))
    assert b"\r" not in unix
    assert unix.endswith(SPAM[1].replace(b"\r\n", b"\n"))


def test_messages_over_the_limit_of_the_client_come_back_unchanged(here: ScannerSite) -> None:
    large = SPAM[2] + random.Random(1).randbytes(800_000)
    assert spamc(here, raw=large) == (0, large)  # more than its own limit of 500 kB
    status, output = spamc(here, "-s", "10000000", raw=large)
    assert (status, output.endswith(large)) == (0, True)
    assert len(output) > len(large)


def test_beyond_our_limit(tmp_path: Path) -> None:
    with site(tmp_path, "spamd", "    limits: {message_size: 100KiB}\n") as small:
        large = SPAM[2] + b"x" * 400_000
        assert spamc(small, raw=large) == (0, large)
        assert spamc(small, "-x", raw=large)[0] >= 64  # sysexits.h
        assert spamc(small, "-c", raw=SPAM[0])[0] == 1


def test_teaching_and_taking_back(here: ScannerSite) -> None:
    raw = SPAM[3]
    before = spamc(here, "-c", "-u", "anna", raw=raw)
    assert before[0] == 1
    for label, told in (("ham", b"successfully"), ("ham", b"already")):
        status, found = spamc(here, "-L", label, "-u", "anna", raw=raw)
        assert (status, told in found) == (0, True)
    since = time.monotonic()
    eventually(
        lambda: spamc(here, "-c", "-u", "anna", raw=raw)[0] == 0,
        "what anna says is in force for her",
    )
    assert time.monotonic() - since < IN_FORCE_SECONDS
    assert b"successfully" in spamc(here, "-L", "forget", "-u", "anna", raw=raw)[1]
    assert b"already" in spamc(here, "-L", "forget", "-u", "anna", raw=raw)[1]
    eventually(lambda: spamc(here, "-c", "-u", "anna", raw=raw) == before, "it is taken back")
    assert "user=anna" in here.running.lines("class=- ")[0]


def test_reporting_to_others_is_not_done_but_learning_is(here: ScannerSite) -> None:
    spamc(here, "-C", "report", "-u", "ben", raw=SPAM[4])
    here.running.lines("lesson user=ben by=spamd class=spam")


def test_only_teachers_teach(tmp_path: Path) -> None:
    with site(tmp_path, "spamd") as found:
        status, told = spamc(found, "-L", "spam", raw=SPAM[5])
        assert status != 0 or b"successfully" not in told
        assert "lesson" not in found.running.log().replace("lessons", "")


def test_a_reload_loses_no_request(here: ScannerSite) -> None:
    """Clients go on asking meanwhile: none of them is refused."""
    usual = spamc(here, "-x", "-c", raw=SPAM[0])[0]

    def ask(_: int) -> int:
        return spamc(here, "-x", "-c", raw=SPAM[0])[0]

    with ThreadPoolExecutor(4) as clients:
        replies = clients.map(ask, range(60))
        here.running.process.send_signal(signal.SIGHUP)
        assert list(replies) == [usual] * 60
    assert usual in (0, 1)
    here.running.lines("has drained", 2)
