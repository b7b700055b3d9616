"""The certificate of a door is read again after a change, and there is always one in use."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from spamguard.config.options import Certificate
from spamguard.servers.listener import CertificateReloader
from tests.support.certificates import needs_openssl, self_signed

pytestmark = needs_openssl


def test_a_broken_certificate_leaves_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pem = self_signed(tmp_path)
    reloader = CertificateReloader(Certificate(pem, pem))
    context = reloader.context
    reloader.reload()
    assert caplog.messages == []
    pem.write_text("rubbish")
    reloader.reload()
    reloader.reload()
    self_signed(tmp_path)
    os.utime(pem, (1, 1))
    reloader.reload()
    assert reloader.context is context
    assert ["old one is" in message for message in caplog.messages] == [True, False]
    pem.unlink()
    caplog.clear()
    for _ in range(3):
        reloader.reload()
    assert ["cannot be used" in message for message in caplog.messages] == [True]


def test_rights_that_are_mended_later_are_seen(tmp_path: Path) -> None:
    """A renewal often writes the file first and changes its rights later, which leaves the time of
    writing unchanged.
    """
    pem = self_signed(tmp_path)
    reloader = CertificateReloader(Certificate(pem, pem))
    new = self_signed(tmp_path).read_bytes()
    for text in (b"unreadable", new):
        pem.write_bytes(text)
        os.utime(pem, (1, 1))
        reloader.reload()
    assert shown(reloader.context) == der(new)


def der(pem: bytes) -> bytes:
    certificate = (
        pem[pem.index(b"-----BEGIN CERTIFICATE") :]
        .partition(b"-----BEGIN EC")[0]
        .partition(b"-----BEGIN PRIVATE")[0]
    )
    return ssl.PEM_cert_to_DER_cert(certificate.decode())


def shown(context: ssl.SSLContext) -> bytes | None:
    """The certificate that a client gets to see."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = (
        trusting.wrap_bio(to_client, to_server),
        context.wrap_bio(to_server, to_client, server_side=True),
    )
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert(binary_form=True)
