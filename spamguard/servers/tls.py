"""TLS at a door and at the page: the operator's certificate, which may change while we run.

Must never ask for the password of a key, or lose a good certificate to a bad file.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from spamguard.config.options import Certificate
from spamguard.errors import StartError

_log = logging.getLogger("spamguard.tls")


def _server_context(certificate: Certificate) -> ssl.SSLContext:
    """A context with this certificate, which asks no client for one. StartError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, certificate)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Use a certificate from now on. StartError: the files are unreadable or do not match."""
    try:
        # With a password, nobody is asked for one.
        context.load_cert_chain(certificate.certificate, certificate.key, password="")
    except OSError as error:  # ssl.SSLError is one
        files = f"{certificate.certificate}, {certificate.key}"
        remedy = "name a certificate and its key, in PEM files that the daemon's user can read"
        raise StartError(
            f"{files}: cannot be used for TLS ({error.strerror or error}): {remedy}"
        ) from error


class CertificateReloader:
    """A TLS context whose certificate follows its files. StartError: they cannot be used."""

    def __init__(self, files: Certificate) -> None:
        self._files = files
        self.context = _server_context(files)
        self._loaded_times = self._change_times()

    def reload(self) -> None:
        """Load the files again if they have changed; bad files leave the old certificate in use."""
        try:
            change_times = self._change_times()
            if change_times != self._loaded_times:
                self._loaded_times = change_times
                # On trial: with a wrong key the old certificate would be lost before the error.
                _server_context(self._files)
                _load_certificate(self.context, self._files)
                _log.info("handshakes use the new certificate in %s", self._files.certificate)
        except StartError as error:
            _log.error("the new certificate cannot be used: the old one is (%s)", error)

    def _change_times(self) -> tuple[int, ...]:
        return _change_time(self._files.certificate), _change_time(self._files.key)


def _change_time(path: Path) -> int:
    """When its contents or rights changed, in nanoseconds; 0: the file cannot be seen."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0
