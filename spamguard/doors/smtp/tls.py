"""STARTTLS at the door: the operator's certificate, and the handshake on a connection that has begun in the clear.

Must never carry a byte over from before the handshake to after it (RFC 3207, section 4.2).
"""

from __future__ import annotations

import asyncio
import ssl

from spamguard.errors import StartError
from spamguard.settings import Certificate

_HANDSHAKE_SECONDS = 60.0


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


async def upgrade(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, context: ssl.SSLContext) -> asyncio.Transport:
    """The transport to go on with. OSError (ssl.SSLError, ConnectionError) when the handshake fails; the connection is then closed."""
    loop = asyncio.get_running_loop()
    upgraded = await loop.start_tls(transport, protocol, context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SECONDS)
    if upgraded is None:
        raise ConnectionError("the client went away during the handshake")
    return upgraded
