"""Whether Postfix names our doors, by its own `postconf` with the snippets that we ship."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spamguard import doctor
from spamguard.config.options import (
    Hop,
    Listener,
    Position,
    Scanner,
    Settings,
    parse_endpoint,
    parse_scanner,
)
from spamguard.doctor import StepOutcome

SNIPPETS = Path(__file__).parents[3] / "config" / "postfix"
PROXY = parse_endpoint("smtp://127.0.0.1:10025")
MILTER = parse_scanner("milter://127.0.0.1:11332")
SOCKET = parse_scanner("milter:/var/spool/postfix/spamguard/milter.sock")

needs_postfix = pytest.mark.skipif(
    shutil.which("postconf") is None, reason="Postfix is not installed"
)


@pytest.fixture
def configured(tmp_path):
    """What `postconf` says of a configuration made of snippets."""

    def say(*snippets: str, main: str = "") -> str:
        for name in ("main.cf", "master.cf"):
            parts = [
                (SNIPPETS / snippet).read_text() for snippet in snippets if snippet.endswith(name)
            ]
            (tmp_path / name).write_text("\n".join([*parts, main if name == "main.cf" else ""]))
        return doctor.read_postconf(str(tmp_path))[1]

    return say


@needs_postfix
@pytest.mark.parametrize(
    ("snippets", "door"),
    [
        (("after-queue.main.cf", "after-queue.master.cf"), PROXY),
        (("before-queue.master.cf",), PROXY),
        (("milter.main.cf",), MILTER),
    ],
)
def test_the_snippets_name_our_doors(configured, snippets, door):
    assert doctor.find_unnamed(configured(*snippets), [door]) == []


@needs_postfix
def test_what_is_named_elsewhere_does_not_count(configured):
    """The way back is a service of Postfix's own, another port may begin with the same digits."""
    postfix = configured(
        "before-queue.master.cf",
        main="smtpd_milters = inet:127.0.0.1:113321, unix:spamguard/other.sock\n",
    )
    back = parse_endpoint("smtp://127.0.0.1:10026")
    assert doctor.find_unnamed(postfix, [PROXY, back, MILTER, SOCKET]) == [back, MILTER, SOCKET]
    assert (
        doctor.find_unnamed(
            configured(main="smtpd_milters = unix:spamguard/milter.sock\n"), [SOCKET]
        )
        == []
    )


@needs_postfix
def test_nothing_is_known_of_what_cannot_be_asked(tmp_path):
    assert doctor.read_postconf(str(tmp_path / "none"))[1] == ""


def settings(*doors: Listener | Scanner) -> Settings:
    listeners, scanners = [
        [door for door in doors if isinstance(door, kind)] for kind in (Listener, Scanner)
    ]
    return Settings(Path("/"), tuple(listeners), scanners=tuple(scanners))


def test_the_step(monkeypatch):
    after, alone = (
        Listener(PROXY, position, Hop(PROXY))
        for position in (Position.AFTER_QUEUE, Position.STANDALONE)
    )
    milter, other = Scanner(MILTER), Scanner(parse_scanner("spamd://127.0.0.1:783"))
    monkeypatch.setattr(doctor, "read_exim", lambda: ("", ""))

    def steps(postfix, *doors):
        monkeypatch.setattr(doctor, "read_postconf", lambda: ("3.7.11", postfix))
        return list(doctor.check_mail_servers(settings(*doors)))

    names_it = "content_filter = spamguard:[127.0.0.1]:10025\n"
    assert steps(names_it, alone, other) == []  # the world asks these
    (named,) = steps(names_it, after, other)
    assert (named.outcome, "3.7.11" in named.detail) == (StepOutcome.OK, True)
    (failed,) = steps(names_it, after, milter)
    assert (failed.outcome, str(MILTER) in failed.detail, str(PROXY) in failed.detail) == (
        StepOutcome.FAILED,
        True,
        False,
    )
    for table in (
        "transport_maps = hash:/etc/transport",
        "smtpd_client_restrictions = check_client_access cidr:/etc/filter",
    ):
        (unknown,) = steps(f"{table}\n", after)
        assert unknown.outcome is StepOutcome.SKIPPED
        assert "whether a table does" in unknown.detail
    assert [step.outcome for step in steps("transport_maps =\n", after)] == [StepOutcome.FAILED]
    assert [step.outcome for step in steps("", after)] == [StepOutcome.SKIPPED]
