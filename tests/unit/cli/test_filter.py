"""`filter`: the mail comes out, byte for byte, whatever happens."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spamguard import keys
from spamguard.cli import main
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError

FIELDS = re.compile(rb"(>?From [^\n]*\n)?(?:X-Spam(?:-Flag|-Status|guard): [^\r\n]*\r?\n)+")
NOT_SCANNED = b"X-Spamguard: not-scanned; reason="
MAIL = b"From: anna@example.org\nSubject: hello\n\nbody\n"


def test_the_verdict_is_on_top(run, taught, clear):
    done = run(taught, "filter", stdin=clear["spam"])
    assert (done.status, done.err) == (0, "")
    fields = done.raw[: len(done.raw) - len(clear["spam"])]
    assert fields.startswith(b"X-Spam-Flag: YES\nX-Spam-Status: Yes, score=")
    assert re.search(
        rb"\nX-Spamguard: spam; id=[0-9a-f]{20}; k=[0-9a-f]{8}; s=[\w-]{20}\n\Z", fields
    )
    assert done.raw.endswith(clear["spam"])


def test_the_verdict_is_signed_for_this_message(run, taught, clear):
    first, again = (run(taught, "filter", stdin=clear["spam"]).raw for _ in range(2))
    with Filter.open(taught) as spam_filter:
        key, scan = keys.derive_key(spam_filter.key, b"verdict"), spam_filter.scan(clear["spam"])
        other_digest = spam_filter.scan(clear["ham"]).digest
    values = [re.search(rb"^X-Spamguard: (.*)$", out, re.MULTILINE)[1] for out in (first, again)]
    signed = [keys.verify_verdict(key, value, scan.digest) for value in values]
    assert [(verdict.label, verdict.action, verdict.log_odds) for verdict in signed] == [
        ("spam", "tag", pytest.approx(scan.verdict.log_odds, abs=0.01))
    ] * 2
    assert signed[0].id != signed[1].id
    assert keys.verify_verdict(key, values[0], other_digest) is None


def test_wanted_mail_has_no_flag(run, taught, clear):
    done = run(taught, "filter", stdin=clear["ham"])
    assert done.raw.startswith(b"X-Spam-Status: No, score=")
    assert b"X-Spam-Flag" not in done.raw


def test_crlf_stays_crlf(run, taught):
    raw = MAIL.replace(b"\n", b"\r\n")
    out = run(taught, "filter", stdin=raw).raw
    assert out.endswith(raw)
    assert out.count(b"\n") == out.count(b"\r\n")


def test_the_mbox_line_stays_first(run, taught):
    out = run(taught, "filter", stdin=b"From anna Thu Jan  4 10:11:12 2024\n" + MAIL).raw
    assert out.startswith(b"From anna Thu Jan  4 10:11:12 2024\nX-Spam")
    assert out.endswith(MAIL)


def test_forged_verdicts_go(run, taught):
    forged = b"X-Spam-Flag: NO\nx-spamguard : ham\nX-SPAM-STATUS: No,\n score=-100\n"
    out = run(taught, "filter", stdin=forged + MAIL).raw
    assert out.endswith(b"\n" + MAIL)
    assert b"-100" not in out
    assert out.lower().count(b"x-spamguard") == 1


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


def test_rewriting_fails(run, taught, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr("spamguard.mail.message.add_fields", fail)
    done = run(taught, "filter", stdin=MAIL)
    assert (done.status, done.raw) == (0, MAIL)


def test_errors_that_nobody_reads(run, taught, monkeypatch):
    def fail(*arguments, **settings):
        raise OSError

    monkeypatch.setattr("spamguard.engine.filter.Filter.open", fail)
    monkeypatch.setattr("spamguard.cli.common.say", fail)
    done = run(taught, "filter", stdin=MAIL)
    assert (done.status, done.raw) == (0, NOT_SCANNED + b"OSError\n" + MAIL)


def spoil_ledger(state):
    (state / "ledger.sqlite").write_bytes(b"x" * 5000)


def lose_key(state):
    (state / "key").unlink()


def cut_tables(state):
    (file,) = state.glob("tables-*.bin")
    file.write_bytes(file.read_bytes()[:5000])


@pytest.mark.parametrize("damage", [spoil_ledger, lose_key, cut_tables])
def test_a_damaged_filter_lets_the_mail_through(run, taught, damage):
    damage(taught)
    done = run(taught, "filter", stdin=MAIL)
    assert done.status == 0
    assert done.raw.startswith(NOT_SCANNED)
    assert done.raw.endswith(b"\n" + MAIL)
    assert done.err.count("\n") == 1


def test_a_state_directory_that_is_a_file(run, tmp_path):
    (tmp_path / "state").touch()
    assert run(tmp_path / "state", "filter", stdin=MAIL).raw.endswith(b"\n" + MAIL)


def test_a_new_filter_is_unsure(run, tmp_path):
    done = run(tmp_path / "new", "filter", stdin=MAIL)
    assert re.search(rb"\nX-Spamguard: unsure; [^\n]*\n" + re.escape(MAIL) + rb"\Z", done.raw)
    assert "taught nothing yet" in done.err


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


def test_an_unknown_profile_lets_the_mail_through(run, taught):
    done = run(taught, "--profile", "best", "filter", stdin=MAIL)
    assert (done.status, done.raw) == (0, NOT_SCANNED + b"UsageError\n" + MAIL)


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


def test_a_user_gets_a_verdict_of_their_own(run, taught, clear):
    with Filter.open(taught) as spam_filter:
        for user in ("anna", "ben", "cleo"):
            spam_filter.learn(clear["ham"], "spam" if user == "anna" else "ham", user=user)
    assert run(taught, "filter", "--user", "anna", stdin=clear["ham"]).raw.startswith(
        b"X-Spam-Flag: YES\nX-Spam-Status: Yes, "
    )
    assert run(taught, "filter", stdin=clear["ham"]).raw.startswith(b"X-Spam-Status: No, ")
