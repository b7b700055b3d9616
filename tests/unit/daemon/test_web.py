"""The web process and its errors; the rest is tested with the real daemon."""

from __future__ import annotations

import errno

from spamguard.config.options import HostPort, Web
from spamguard.daemon import web


def test_the_error_for_a_low_port_names_the_remedy() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert "from 1024 on" in web.describe_error(Web(HostPort("127.0.0.1", 443)), refused)
    assert (
        web.describe_error(Web(HostPort("127.0.0.1", 8080)), refused)
        == "http://127.0.0.1:8080: Permission denied"
    )
