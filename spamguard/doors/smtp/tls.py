"""STARTTLS at the door: the operator's certificate, and the handshake on a connection that has begun in the clear.

Must never carry a byte over from before the handshake to after it (RFC 3207, section 4.2).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from spamguard.errors import StartError
from spamguard.settings import Certificate

_HANDSHAKE_SECONDS = 60.0

_log = logging.getLogger("spamguard.tls")


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """StartError when the files cannot be read or do not fit each other. Clients are not asked for certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load(context, certificate)
    return context


def load(context: ssl.SSLContext, certificate: Certificate) -> None:
    """What is shown from now on. StartError: nothing of it can be used."""
    try:
        context.load_cert_chain(certificate.certificate, certificate.key, password="")  # nobody is asked for one
    except OSError as error:  # ssl.SSLError is one
        files = f"{certificate.certificate}, {certificate.key}"
        remedy = "name a certificate and its key, in PEM files that the daemon's user can read"
        raise StartError(f"{files}: cannot be used for TLS ({error.strerror or error}): {remedy}") from error


class Certificates:
    """The operator's, read anew when they are others. StartError: files that cannot be read, or that do not fit each other."""

    def __init__(self, files: Certificate) -> None:
        self._files = files
        self.context = server_context(files)
        self._seen = self._look()

    def renew(self) -> None:
        """Handshakes from now on use what is in the files now; what cannot be used leaves the old ones in force."""
        try:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                server_context(self._files)  # on trial: a certificate without its key takes the old one's place, and then fails
                load(self.context, self._files)
                _log.info("handshakes use the new certificate in %s", self._files.certificate)
        except StartError as error:
            _log.error("the new certificate cannot be used: the old one is (%s)", error)

    def _look(self) -> tuple[int, ...]:
        return _changed(self._files.certificate), _changed(self._files.key)


def _changed(path: Path) -> int:
    """When its contents or rights were; 0: it cannot be seen, which is told once."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0


async def upgrade(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, context: ssl.SSLContext) -> asyncio.Transport:
    """The transport to go on with. OSError (ssl.SSLError, ConnectionError) when the handshake fails; the connection is then closed."""
    loop = asyncio.get_running_loop()
    upgraded = await loop.start_tls(transport, protocol, context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SECONDS)
    if upgraded is None:
        raise ConnectionError("the client went away during the handshake")
    return upgraded
