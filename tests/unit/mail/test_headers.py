"""Which header fields are evidence, and how they become sections."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.headers import (
    address_tokens,
    evidence_fields,
    field_sections,
    host_token,
    value_shape,
)
from spamguard.records import Features
from tests.unit.mail.support import KEY, header, repeatable


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


VERDICTS = names(
    """
    X-Spam-Status X-Spam-Flag X-Spam-Level X-Spam-Score X-Spam-Report X-Spam-Checker-Version
    X-Spamguard X-Spamguard-Id Spam-Flag X-Bogosity X-CRM114-Status X-DSPAM-Result
    X-DSPAM-Signature X-Spambayes-Classification X-Hammie-Disposition X-Text-Classification
    X-POPFile-Link X-SpamProbe X-Rspamd-Score X-Rspamd-Queue-Id X-Spamd-Bar X-Spamd-Result
    X-MailScanner X-Acme-MailScanner-SpamCheck X-Virus-Scanned X-Virus-Status X-Antivirus
    X-Scanned-By X-Amavis-Alert X-Barracuda-Spam-Score X-Barracuda-Connect X-ASG-Debug-ID
    X-IronPort-AV X-IronPort-Anti-Spam-Result X-Proofpoint-Virus-Version
    X-Forefront-Antispam-Report X-Microsoft-Antispam X-Microsoft-Antispam-Mailbox-Delivery
    X-MS-Exchange-Organization-SCL X-MS-Exchange-Organization-AuthAs
    X-Exchange-Antispam-Report-Test X-Vade-Verdict X-VR-SPAMSTATE X-VR-SPAMCAUSE
    X-UI-Filterresults X-UI-Out-Filterresults X-GMX-Antispam X-Junk-Score X-Cloudmark-SP-Filter
    X-CMAE-Analysis X-CTCH-Spam X-CNFS-Analysis X-Bitdefender-Scanner X-PMX-Version X-TM-AS-Result
    X-KLMS-AntiSpam-Status X-Brightmail-Tracker X-Razor-id X-Pyzor X-DCC-ISP-Metrics
    X-SA-Exim-Scanned X-Sender-Score X-Mimecast-Spam-Score X-Ham-Report X-CanIt-Geo X-purgate-type
    X-RC-FROM X-PM-Spam X-MDSpam X-pstn-levels X-pstn-settings X-NAS-Classification X-ELNK-AV
    X-EsetResult X-Assp-Tag X-Xfinity-VMeta X-Authority-Analysis X-MessageSniffer-Rules
    X-GBUdb-Analysis X-Whitelisted-By X-Blacklisted-At X-DNSBL X-RBL-Warning
    """
)
MAILBOX_STATE = names(
    """
    Status X-Status X-Keywords Keywords X-Label X-UID X-UIDL X-Folder X-IMAP X-IMAPbase
    X-Mozilla-Status X-Mozilla-Status2 X-Mozilla-Keys X-Evolution-Source X-KMail-SignatureState
    X-Gmail-Labels X-GM-THRID X-TUID X-Account-Key Content-Length Lines Delivered-To
    X-Delivered-To Return-Path Envelope-To X-Envelope-From X-Envelope-To X-Original-To
    """
)
AUTHENTICATION = names(
    """
    Authentication-Results ARC-Authentication-Results ARC-Seal ARC-Message-Signature Received-SPF
    DKIM-Signature DomainKey-Signature X-Received X-Google-DKIM-Signature X-Google-Smtp-Source
    X-Gm-Message-State
    """
)
WRITTEN = names(
    """
    Subject From To Cc Reply-To Sender Received Date Message-ID References In-Reply-To List-Id
    List-Unsubscribe Precedence X-Mailer User-Agent X-Priority X-MSMail-Priority MIME-Version
    Content-Type X-MimeOLE Organization X-Originating-IP Mailing-List X-Mailman-Version
    """
)
NEVER = (*VERDICTS, *MAILBOX_STATE, *AUTHENTICATION)


def is_evidence(name: bytes) -> bool:
    return evidence_fields([(name.lower(), b"value")]) != []


@pytest.mark.parametrize("name", NEVER)
def test_verdicts_and_mailbox_state_are_no_evidence(name: str) -> None:
    assert not is_evidence(name.encode())


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_sender_wrote_is_evidence(name: str) -> None:
    assert is_evidence(name.encode())


def test_names_may_have_any_length() -> None:
    assert is_evidence(b"x-" + b"a" * 100_000)
    assert not is_evidence(b"x-spam" + b"a" * 100_000)


MAIL = [raw for _, raw in generate(60, 11)]
values = st.sampled_from(
    (
        b"Yes",
        b"score=9.9 required=5 viagra",
        b"=?utf-8?q?=FF?=",
        b"\xff\xfe",
        b"",
        b"folded\n more: text",
        b"a@b.example",
    )
)
inserted = st.lists(
    st.tuples(st.sampled_from(NEVER), values, st.integers(0, 100)), min_size=1, max_size=6
)


def same(first: Features, second: Features) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("tokens", "traits", "numbers")
    )


def insert(raw: bytes, fields: list[tuple[str, bytes, int]]) -> bytes:
    """The message with fields more, each before the field of that number."""
    top, _, body = raw.partition(b"\n\n")
    blocks = top.replace(b"\n ", b"\0 ").replace(b"\n\t", b"\0\t").split(b"\n")
    for name, value, position in fields:
        blocks.insert(position % (len(blocks) + 1), name.encode() + b": " + value)
    return b"\n".join(blocks).replace(b"\0", b"\n") + b"\n\n" + body


@repeatable
@given(st.sampled_from(MAIL), inserted)
def test_adding_answers_leaves_the_features_as_they_are(
    raw: bytes, fields: list[tuple[str, bytes, int]]
) -> None:
    extractor = FeatureExtractor(KEY)
    assert same(extractor.features(insert(raw, fields)), extractor.features(raw))


def test_answers_in_a_part_or_a_nested_message_are_no_evidence() -> None:
    def mail(extra: bytes) -> bytes:
        inner = extra + b"Subject: inside\nContent-Type: text/plain\n\nhello"
        part = (
            b"--b\n"
            + extra
            + b"Content-Type: text/plain\n\nhello\n--b\nContent-Type: message/rfc822\n\n"
            + inner
            + b"\n--b--\n"
        )
        return header(
            b"From: a@example.com", b"Content-Type: multipart/mixed; boundary=b", body=part
        )

    texts = FeatureExtractor(KEY).token_texts(
        mail(b"X-Spam-Status: Yes\nDelivered-To: anna@example.com\n")
    )
    assert texts == FeatureExtractor(KEY).token_texts(mail(b""))
    assert "part subject:inside" in texts.values()


def test_a_field_cannot_pass_for_another_section() -> None:
    names = {
        name
        for name, _ in field_sections(
            evidence_fields(
                [(b"clue", b"x"), (b"host", b"y"), (b"hidden", b"z"), (b"subject", b"s")]
            )
        )[0]
    }
    assert names == {b"field clue", b"field host", b"field hidden", b"subject", b"names"}


def test_fields_become_sections() -> None:
    fields = [
        (b"from", b"Anna <Anna.B@Mail.Example.com>"),
        (b"date", b"Mon, 1 Jan 2024 10:00:00 +0100"),
        (b"message-id", b"<AbC.123@Host.example>"),
        (b"received", b"from X by Y; Mon, 1 Jan 2024 10:00:00 +0100"),
        (b"subject", b"=?utf-8?q?Gr=C3=BCn?="),
        (b"x-mailer", b"Quill"),
    ]
    sections, defects = field_sections(evidence_fields(fields))
    assert defects == []
    assert dict(sections) == {
        b"from": b"anna <anna.b@mail.example.com>",
        b"address": b"anna_b-at-mail_example_com mail_example_com",
        b"date-shape": b"Aa--0-Aa-0-0-0-0-_0",
        b"zone": b"+0100",
        b"id-shape": b"_AaA_0_Aa_a_",
        b"id-host": b"host_example",
        b"received": b"from x by y",
        b"subject": "grün".encode(),
        b"x-mailer": b"quill",
        b"names": b"from date message_id received subject x_mailer",
    }


def test_fields_in_escape_sequences_are_read() -> None:
    sections = dict(
        field_sections([(b"subject", "会議の資料".encode("iso-2022-jp")), (b"x-mailer", b"Becky")])[
            0
        ]
    )
    assert sections[b"subject"] == "会議の資料".encode()
    assert sections[b"x-mailer"] == b"becky"


def test_a_value_may_hold_any_byte() -> None:
    values = [
        (b"subject", b"A\0B"),
        (b"x-a", b""),
        (b"received", b"Of A; Date"),
        (b"x-b", b"C\n D"),
        (b"date", b"Mon\0 +0100"),
    ]
    sections, defects = field_sections(values)
    assert sections[:4] == [
        (b"subject", b"a\0b"),
        (b"x-a", b""),
        (b"received", b"of a"),
        (b"x-b", b"c\n d"),
    ]
    assert [text for name, text in sections if name == b"zone"] == [b"+0100"]
    assert defects == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from((b"subject", b"received", b"date", b"message-id", b"from", b"x-a")),
            st.binary(max_size=12),
        )
    )
)
def test_each_field_is_read_as_if_it_stood_alone(values: list[tuple[bytes, bytes]]) -> None:
    alone = [section for value in values for section in field_sections([value])[0][:-1]]
    assert field_sections(values)[0][:-1] == alone


def test_helpers() -> None:
    assert address_tokens(b"a.b@c.d, <x@y>") == b"a_b-at-c_d c_d x-at-y y"
    assert host_token(b"a.b.c") == b"a_b_c"
    assert value_shape(b"Ab12.Cd") == value_shape(b"Xy99.Qr") != value_shape(b"ab12.cd")
