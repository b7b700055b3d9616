"""Made-up mail concerns nobody."""

from __future__ import annotations

import re

from tests.unit.filters import mail


def test_only_hosts_that_can_never_exist() -> None:
    reserved = re.compile(rb"(?:.*\.)?(?:example|invalid|example\.(?:com|net|org))")
    for _, raw in mail(2000):
        for host in re.findall(
            rb"(?:@|https?://|from |by )([a-z0-9.-]+\.[a-z]{3,})(?=[>/; \n)\"])",
            raw.partition(b"\n\n")[0],
        ):
            assert reserved.fullmatch(host), host
        for host in re.findall(rb"https?://([a-z0-9.=-]+)/", raw):
            assert reserved.fullmatch(host.replace(b"=", b"")), host
