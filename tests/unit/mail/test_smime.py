"""Messages within opaque signatures, as OpenSSL and others write them, and damaged ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.mime import extract_signed_content
from tests.unit.mail.support import repeatable

SIGNED, DATA = bytes.fromhex("06092a864886f70d010702"), bytes.fromhex("06092a864886f70d010701")


@repeatable
@given(st.binary(max_size=60))
def test_any_bytes_are_taken(data: bytes) -> None:
    assert len(extract_signed_content(SIGNED + DATA + data)) <= len(data)
