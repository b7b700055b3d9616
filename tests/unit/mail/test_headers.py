"""Which header fields are evidence, and how they become sections."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.headers import (
    evidence_fields,
    field_sections,
)
from spamguard.records import Features
from tests.unit.mail.support import KEY, repeatable


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
    X-Mras X-Mru-Trust-IP X-7564579A X-Mailgun-Sflag X-Mailgun-Sscore X-Mailgun-Spf
    X-AOL-Global-Disposition X-AOL-SCOLL-AUTHENTICATION X-Haraka-Karma X-Haraka-FCrDNS X-Mox-Reason
    X-Forefront-PRVS X-MS-Exchange-AtpMessageProperties X-MS-Exchange-CrossPremises-SCL
    X-MS-Office365-Filtering-Correlation-Id X-EOPAttributedMessage X-Yandex-Karma X-KSMG-Rule-ID
    X-FEAS-Hash X-Sophos-Email-ID X-DrWeb-Hits X-Halon-ID X-TOI-EXPURGATEID X-Quarantine-ID
    X-Greylist X-MDAV-Result X-MDPtrLookup-Result X-Recommended-Action
    X-GBUdb-Analysis X-Whitelisted-By X-Blacklisted-At X-DNSBL X-RBL-Warning
    """
)
MAILBOX_STATE = names(
    """
    Status X-Status X-Keywords Keywords X-Label X-UID X-UIDL X-Folder X-IMAP X-IMAPbase
    X-Mozilla-Status X-Mozilla-Status2 X-Mozilla-Keys X-Evolution X-Evolution-Source
    X-Gnus-Newsgroup X-VM-v5-Data X-PMFLAGS X-Eudora-Labels X-Sylpheed-Account-Id X-Claws-Seen
    X-Unsent X-Labels X-KMail-SignatureState
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
NEVER = (*VERDICTS, *MAILBOX_STATE, *AUTHENTICATION)


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
