"""The benchmarks beside peers: no lesson comes after what is judged, classes come out as unequal as
asked for, peers are asked once.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from corpora import synthetic
from tests.bench import (
    bare,
    contest,
    courses,
    foreign,
    pictures,
    rivals,
    streams,
)
from tests.bench.streams import Mail

pytestmark = pytest.mark.slow

STREAM = [Mail("spam" if number % 3 == 0 else "ham", Path(str(number))) for number in range(900)]


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> list[Mail]:
    place = tmp_path_factory.mktemp("mail") / "corpus"
    synthetic.write(place, 80, 5)
    return streams.labelled(place / "index")


# ---- streams


def test_streams_in_turns_keep_their_orders_and_run_out_together() -> None:
    first, second = STREAM[:600], STREAM[600:]
    together = streams.in_turns([first, second])
    assert [one for one in together if one in first] == first
    assert [one for one in together if one in second] == second
    assert all(
        sum(one in second for one in together[start : start + 90]) == 30
        for start in range(0, 900, 90)
    )


def test_hardly_a_header_is_left() -> None:
    head = (
        b"Received: from a\r\n by b\r\nFrom: anna@example.org\r\nSUBJECT: Re: [list] one\r\n"
        b"\ttwo\r\nContent-Type: text/plain\r\n"
    )
    raw = head + b"\r\nbody: [kept]\r\n\r\nyes\r\n"
    assert (
        bare.bare(raw)
        == b"SUBJECT: Re: one\n\ttwo\nContent-Type: text/plain\n\nbody: [kept]\n\nyes\n"
    )
    assert bare.bare(raw, ["from"]).startswith(b"From: anna@example.org\nSUBJECT")
    assert bare.bare(b"no header at all") == b""


def test_mail_as_other_corpora_have_it_says_the_same_in_another_form(mail: list[Mail]) -> None:
    raw = (
        (
            b"From: anna\nSubject: [list] Buy now!\nContent-Type: text/html\n\n"
            b"<style>a</style><p>Attention: it&nbsp;is "
        )
        + b"cheap " * 50
        + b"</p>"
    )
    assert foreign.line(raw).startswith(b"Attention: ")
    assert len(foreign.line(raw)) == 161
    assert foreign.tokenised(raw).startswith(b"Subject: buy now !\nattention : ")
    pages = [foreign.chinese(one.path.read_bytes()).partition(b"\n\n") for one in mail]
    assert {b"charset=gb2312" in head for head, _, _ in pages} == {True, False}
    assert any(not body.isascii() for _, _, body in pages)
    for way in foreign.WAYS.values():
        assert way(raw) == way(raw)
        way(b"")


# ---- filters


def test_unknown_filters_are_refused() -> None:
    with pytest.raises(SystemExit, match="no filter 'spambytes'"):
        rivals.available(["spambytes"])


# ---- courses


class Parrot(contest.Rival):
    """Says what it was taught last."""

    said = contest.Answer(0.0, "unsure", True)
    asked = 0

    def judge(self, path: Path) -> contest.Answer:
        Parrot.asked += 1
        return self.said

    def teach(self, path: Path, label: str) -> None:
        self.said = contest.Answer(1.0 if label == "spam" else -1.0, label, False)


def test_corrections_teach_only_what_was_wrong_or_in_doubt(tmp_path: Path) -> None:
    three = [Mail(label, Path("x")) for label in ("spam", "spam", "ham", "ham")]
    rows = list(courses.online(Parrot(tmp_path / "a"), three, corrections=True))
    assert [row.trained for row in rows] == [True, False, True, False]
    assert [row.label for row in rows] == ["unsure", "spam", "spam", "ham"]
    assert all(row.trained for row in courses.online(Parrot(tmp_path / "b"), three))


# ---- pictures


def test_pictures_are_well_formed_and_stay_inside() -> None:
    text = pictures.reliability(
        {"ours <now>": [pictures.Bin(0.2, 0.25, 0.1, 0.4, 12), pictures.Bin(0.8, 1.0, 0.7, 1.0, 3)]}
    )
    root = ElementTree.fromstring(text)
    assert len(text) < 20_000
    assert "prefers-color-scheme:dark" in text
    numbers = [
        float(one.attrib[key])
        for one in root.iter()
        for key in ("x", "y", "cx", "cy")
        if key in one.attrib
    ]
    assert all(-1 <= number <= pictures.WIDTH for number in numbers)
    assert "ours &lt;now&gt;" in text
