"""Made-up mail is repeatable, well-formed, varied, invented, and quick to make."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from datetime import datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from itertools import islice, pairwise
from pathlib import Path
from typing import cast

import pytest

from corpora.synthetic import HAM, LANGUAGES, SPAM, generate, languages, main
from spamguard.sources import read_messages


@pytest.fixture(scope="module")
def mail() -> list[tuple[str, bytes]]:
    return list(generate(2000, 1))


@pytest.fixture(scope="module")
def parsed(mail: list[tuple[str, bytes]]) -> list[EmailMessage]:
    return [
        cast(EmailMessage, message_from_bytes(raw, policy=policy.default)) for _, raw in mail[:600]
    ]


def test_the_same_seed_gives_the_same_mail() -> None:
    assert list(generate(200, 5)) == list(generate(200, 5))
    assert list(generate(200, 5)) == list(islice(generate(300, 5), 200))
    assert list(generate(5, 5)) != list(generate(5, 6))
    assert list(generate(0, 1)) == []


def test_about_two_fifths_are_spam(mail: list[tuple[str, bytes]]) -> None:
    shares = Counter(label for label, _ in mail)
    assert set(shares) == {"spam", "ham"}
    assert shares["spam"] / len(mail) == pytest.approx(0.4, abs=0.05)


def test_no_message_is_given_twice(mail: list[tuple[str, bytes]]) -> None:
    assert len({raw for _, raw in mail}) == len(mail)


@pytest.mark.slow
def test_a_strict_parser_finds_no_defect(parsed: list[EmailMessage]) -> None:
    for message in parsed:
        for part in message.walk():
            assert not part.defects
            assert all(not value.defects for value in part.values())
        for name in ("From", "To", "Subject", "Date", "Message-ID", "MIME-Version", "Received"):
            assert message[name], name


@pytest.mark.slow
def test_every_text_can_be_read_in_its_charset(parsed: list[EmailMessage]) -> None:
    for message in parsed:
        assert "\ufffd" not in str(message["Subject"]) + str(message["From"])
        for part in message.walk():
            if part.get_content_maintype() == "text":
                assert "\ufffd" not in part.get_content()


def test_phrases_fit_all_charsets_of_their_language() -> None:
    slots = dict.fromkeys(
        (
            "given",
            "family",
            "place",
            "thing",
            "quality",
            "day",
            "number",
            "code",
            "time",
            "url",
            "invented",
            "firm",
        ),
        "x",
    )
    for language in languages().values():
        texts = [text for kind in HAM + SPAM for texts in language.texts[kind] for text in texts]
        lists = [
            *texts,
            *language.hello,
            *language.bye,
            *language.small,
            *language.syllables,
            *sum(language.slots.values(), ()),
        ]
        for text in lists:
            for charset in language.charsets if language.code != "en" else ("us-ascii",):
                text.format_map({**slots, "money": language.money.format(number=1)}).encode(charset)


def test_lines_and_encoded_words_keep_their_limits(mail: list[tuple[str, bytes]]) -> None:
    for _, raw in mail:
        header = raw.partition(b"\n\n")[0]
        assert b"\r" not in raw
        assert max(map(len, raw.split(b"\n"))) <= 998  # RFC 5322, section 2.1.1
        assert all(
            len(word) <= 75 for word in re.findall(rb"=\?[^ ]*\?=", header)
        )  # RFC 2047, section 2


def test_mail_arrives_in_order(parsed: list[EmailMessage]) -> None:
    dates: list[datetime] = [message["Date"].datetime for message in parsed]
    assert all(earlier <= later for earlier, later in pairwise(dates))
    for message, date in zip(parsed, dates, strict=True):
        assert date.year in (2023, 2024)
        assert message["Received"].count("; ") == 1


def test_variety(mail: list[tuple[str, bytes]], parsed: list[EmailMessage]) -> None:
    types = Counter(part.get_content_type() for message in parsed for part in message.walk())
    for kind in (
        "text/plain",
        "text/html",
        "text/calendar",
        "multipart/alternative",
        "multipart/mixed",
        "application/zip",
    ):
        assert types[kind], kind
    transfers = {part["Content-Transfer-Encoding"] for message in parsed for part in message.walk()}
    assert {"7bit", "8bit", "quoted-printable", "base64"} <= transfers
    charsets = {part.get_content_charset() for message in parsed for part in message.walk()}
    assert charsets >= {
        charset for language in languages().values() for charset in language.charsets
    }
    assert set(languages()) == set(LANGUAGES)
    raw = b"".join(raw for _, raw in mail)
    for trace in (
        b"\nIn-Reply-To: ",
        b"\nReferences: ",
        b"\nList-Id: ",
        b"\nList-Unsubscribe: ",
        b"\nDKIM-Signature: ",
        b"\n> ",
    ):
        assert trace in raw


def test_only_hosts_that_can_never_exist(mail: list[tuple[str, bytes]]) -> None:
    reserved = re.compile(rb"(?:.*\.)?(?:example|invalid|example\.(?:com|net|org))")
    for _, raw in mail:
        for host in re.findall(
            rb"(?:@|https?://|from |by )([a-z0-9.-]+\.[a-z]{3,})(?=[>/; \n)\"])",
            raw.partition(b"\n\n")[0],
        ):
            assert reserved.fullmatch(host), host
        for host in re.findall(rb"https?://([a-z0-9.=-]+)/", raw):
            assert reserved.fullmatch(host.replace(b"=", b"")), host


def words(mail: list[tuple[str, bytes]]) -> Counter[bytes]:
    return Counter(word for _, raw in mail for word in set(re.findall(rb"[A-Za-z]{3,}", raw)))


@pytest.mark.slow
def test_vocabulary_grows(mail: list[tuple[str, bytes]]) -> None:
    quarter, half, whole = (len(words(mail[:n])) for n in (500, 1000, 2000))
    assert whole - half > 0.7 * 2 * (half - quarter)  # it hardly flattens


def test_classes_share_most_of_their_common_words(mail: list[tuple[str, bytes]]) -> None:
    spam, ham = (words([pair for pair in mail if pair[0] == label]) for label in ("spam", "ham"))
    common = {word for word, _ in spam.most_common(300)}
    assert sum(ham[word] >= 5 for word in common) > 200


def test_the_command_writes_a_corpus_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "corpus"
    script = Path(sys.modules["corpora.synthetic"].__file__ or "")
    subprocess.run(
        [sys.executable, str(script), "--messages", "30", "--seed", "4", str(target)],
        check=True,
        cwd=tmp_path,
    )
    assert [(message.label, message.raw) for message in read_messages(target)] == list(
        generate(30, 4)
    )
    assert main(["--messages", "1", str(target)]) == 1
    assert "choose a new directory" in capsys.readouterr().err
    assert len(list(read_messages(target))) == 30
