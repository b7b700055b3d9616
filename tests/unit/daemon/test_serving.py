"""What the process behind page and API makes of trouble; the rest of it is tested with the real daemon."""

from __future__ import annotations

import errno
import os
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from spamguard.daemon import serving
from spamguard.metrics.counters import REPORTER, SERVER, Board
from spamguard.settings import Certificate, Place, Settings, Web
from tests.support.certificates import self_signed


def test_a_low_port_says_what_to_do() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert "from 1024 on" in serving._in_words(Web(Place("127.0.0.1", 443)), refused)
    assert serving._in_words(Web(Place("127.0.0.1", 8080)), refused) == "http://127.0.0.1:8080: Permission denied"


def test_a_broken_certificate_leaves_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pem = self_signed(tmp_path)
    found = serving._Certificates(Certificate(pem, pem))
    context = found.context
    found.renew()
    assert caplog.messages == []
    pem.write_text("rubbish")
    found.renew()
    found.renew()
    self_signed(tmp_path)
    os.utime(pem, (1, 1))
    found.renew()
    assert found.context is context
    assert ["old one is" in one for one in caplog.messages] == [True, False]
    pem.unlink()
    caplog.clear()
    for _ in range(3):
        found.renew()
    assert ["cannot be used" in one for one in caplog.messages] == [True]


def test_half_a_new_certificate_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    """Whoever renews it writes one file after the other."""
    pem, key = tmp_path / "localhost.pem", tmp_path / "localhost.key"
    old, new = self_signed(tmp_path).read_bytes(), self_signed(tmp_path).read_bytes()
    pem.write_bytes(old)
    key.write_bytes(old)
    found = serving._Certificates(Certificate(pem, key))
    assert found.context is not None
    pem.write_bytes(new)
    os.utime(pem, (1, 1))
    found.renew()
    assert shown(found.context) == der(old)
    key.write_bytes(new)
    os.utime(key, (1, 1))
    found.renew()
    assert shown(found.context) == der(new)


def der(pem: bytes) -> bytes:
    certificate = pem[pem.index(b"-----BEGIN CERTIFICATE") :].partition(b"-----BEGIN EC")[0].partition(b"-----BEGIN PRIVATE")[0]
    return ssl.PEM_cert_to_DER_cert(certificate.decode())


def shown(context: ssl.SSLContext) -> bytes | None:
    """The certificate that a client gets to see."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert(binary_form=True)


@pytest.mark.parametrize("metrics", [None, Place("127.0.0.1", 9110)])
def test_lessons_are_counted_by_one_process(tmp_path: Path, metrics: Place | None) -> None:
    board = Board.create()
    try:
        monitor = serving.Monitor(Settings(tmp_path, (), metrics=metrics), board)
        monitor.beat()
        assert board.slot(SERVER).heard
        slot = monitor._reporter._looker._slot
        slot.lesson("spam", "web", 3)
        assert bool(list(board.slot(REPORTER).named("lessons"))) == (metrics is None)
    finally:
        os.close(board.descriptor)
