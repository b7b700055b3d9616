"""SpamAssassin's own client, with our daemon in the place of spamd. Debian builds it without zlib:
other tests cover `Compress`.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

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


def test_teaching_and_taking_back(here: ScannerSite) -> None:
    raw = SPAM[3]
    before = spamc(here, "-c", "-u", "anna", raw=raw)
    assert before[0] == 1
    for _ in range(2):
        status, found = spamc(here, "-L", "ham", "-u", "anna", raw=raw)
        assert (status, b"successfully" in found) == (0, True)
    since = time.monotonic()
    eventually(
        lambda: spamc(here, "-c", "-u", "anna", raw=raw)[0] == 0,
        "what anna says is in force for her",
    )
    assert time.monotonic() - since < IN_FORCE_SECONDS
    assert b"successfully" in spamc(here, "-L", "forget", "-u", "anna", raw=raw)[1]
    eventually(lambda: spamc(here, "-c", "-u", "anna", raw=raw) == before, "it is taken back")
    assert "user=anna" in here.running.lines("class=- ")[0]
