"""Self-made certificates for TLS in tests."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl: apt-get install openssl"
)


def self_signed(directory: Path, name: str = "localhost") -> Path:
    """A PEM file with a certificate for a host of this name, which is its own authority, and its
    key.
    """
    pem, key = directory / f"{name}.pem", directory / f"{name}.key"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    what = [
        "-subj",
        f"/CN={name}",
        "-addext",
        f"subjectAltName=DNS:{name}",
        "-keyout",
        str(key),
        "-out",
        str(pem),
    ]
    subprocess.run([*made, *what], check=True, capture_output=True)
    pem.write_bytes(pem.read_bytes() + key.read_bytes())
    return pem


def server_context(pem: Path) -> ssl.SSLContext:
    """For a server that shows it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
