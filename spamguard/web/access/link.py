"""Where people find the page, as far as the settings tell, and the one-time links that lead there."""

from __future__ import annotations

from urllib.parse import urlencode

from spamguard.settings import Web


def address(web: Web) -> str:
    """`https://spam.example.org`, or `https://www.example.org/spam`: without / at the end. A reverse proxy is taken to be where one
    expects it, and to speak HTTPS."""
    if web.proxy is not None:
        return f"https://{_written(web.hosts[0])}{web.proxy.path}" if web.hosts else ""
    host = web.hosts[0] if web.hosts else web.place.host
    return f"{'https' if web.tls else 'http'}://{_written(host)}:{web.place.port}"


def login(page: str, link: str) -> str:
    """The link to send to somebody. In the query, not in the path: that is not logged, and nothing of it goes to other sites."""
    return f"{page.rstrip('/')}/login?{urlencode({'link': link})}"


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
