"""`filter`: the mail comes out, byte for byte, whatever happens."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spamguard.cli import main
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError

FIELDS = re.compile(rb"(>?From [^\n]*\n)?(?:X-Spam(?:-Flag|-Status|guard): [^\r\n]*\r?\n)+")
NOT_SCANNED = b"X-Spamguard: not-scanned; reason="
MAIL = b"From: anna@example.org\nSubject: hello\n\nbody\n"


LINES = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.sampled_from(
            [
                b"From a b\n",
                b"Subject: x\n",
                b" folded\n",
                b"\n",
                b"\r\n",
                b"\r",
                b"A: b\r\n",
                b"\tx\n",
                b"\0",
                b"\xff\n",
                b":\n",
                b"From : x\n",
            ]
        ),
        max_size=12,
    ).map(b"".join),
)


@pytest.fixture(scope="module")
def any_filter(tmp_path_factory):
    state = tmp_path_factory.mktemp("filter") / "state"
    Filter.open(state, _bits=16, _durable=False).close()
    return state


def passed_through(state, raw, monkeypatch):
    out = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw)))
        patch.setattr(sys, "stdout", SimpleNamespace(buffer=out, flush=lambda: None))
        assert main(["--state", str(state), "filter"]) == 0
    return out.getvalue()


@pytest.mark.slow
@settings(
    derandomize=True,
    deadline=None,
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(raw=LINES.filter(lambda raw: b"x-spam" not in raw.lower()))
@example(raw=b"")
@example(raw=b" begins with a blank\n")
@example(raw=b"From a b\n\tbegins with a blank\n")
@example(raw=b"From no line end")
def test_every_byte_comes_out(any_filter, monkeypatch, raw):
    out = passed_through(any_filter, raw, monkeypatch)
    ours = FIELDS.match(out)
    envelope, rest = ours[1] or b"", out[ours.end() :]
    assert envelope == (
        raw[: raw.find(b"\n") + 1] if raw.startswith((b"From ", b">From ")) else b""
    )
    original = raw[len(envelope) :]
    if original[:1] in (
        b" ",
        b"\t",
    ):  # one empty line, or the message's first line would become part of our last field
        assert rest in (b"\n" + original, b"\r\n" + original)
    else:
        assert rest == original


@pytest.mark.slow
def test_a_mail_of_a_hundred_megabytes(taught, monkeypatch):
    raw = MAIL + (b"x" * 76 + b"\n") * (100_000_000 // 77)
    assert passed_through(taught, raw, monkeypatch).endswith(raw)


FAILURES = [
    LedgerError("ledger: damaged"),
    MemoryError(),
    OSError(28, "No space left on device", "/some/file"),
    KeyboardInterrupt(),
    ZeroDivisionError("a fault of ours"),
    RecursionError(),
    SystemExit(1),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "function", ["spamguard.engine.filter.Filter.open", "spamguard.engine.filter.Filter.scan"]
)
def test_any_failure_lets_the_mail_through(run, taught, monkeypatch, error, function):
    def fail(*arguments, **settings):
        raise error

    monkeypatch.setattr(function, fail)
    done = run(taught, "filter", stdin=MAIL)
    assert done.status == 0
    assert done.raw == NOT_SCANNED + type(error).__name__.encode() + b"\n" + MAIL
    assert done.err.startswith("spamguard: the message was not scanned: ")
    assert done.err.count("\n") == 1


def test_modules_that_cannot_be_loaded(run, taught, monkeypatch):
    monkeypatch.setitem(sys.modules, "spamguard.engine.filter", None)
    assert run(taught, "filter", stdin=MAIL).raw.endswith(b"\n" + MAIL)
    monkeypatch.setitem(sys.modules, "spamguard.mail.message", None)
    done = run(taught, "filter", stdin=MAIL)
    assert (done.status, done.raw) == (0, MAIL)


@pytest.mark.parametrize(
    "arguments",
    [
        ["filter", "--colour"],
        ["--profile", "filter"],
        ["filter", "extra"],
        ["--stat", "x", "-z", "filter"],
    ],
)
def test_wrong_usage_lets_the_mail_through(run, taught, arguments):
    done = run(taught, *arguments, stdin=MAIL)
    assert (done.status, done.raw) == (0, NOT_SCANNED + b"wrong-usage\n" + MAIL)
    assert "usage:" in done.err


class Full(io.BytesIO):
    def write(self, data):
        raise OSError(28, "No space left on device")


def test_mail_that_cannot_be_written_is_kept_by_the_delivery_agent(taught, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(MAIL)))
    monkeypatch.setattr(
        sys, "stdout", SimpleNamespace(buffer=Full(), flush=lambda: None, fileno=lambda: -1)
    )
    assert main(["--state", str(taught), "filter"]) == 75
    assert "could not be passed on: No space left on device" in capsys.readouterr().err
