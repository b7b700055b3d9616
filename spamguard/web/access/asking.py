"""What the head of a request says of who asks and from where, as far as it can be believed. Values in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spamguard.reception.clients import Networks, plain_address
from spamguard.settings import Web, WebProxy
from spamguard.web.access.problems import refusal

Scope = Mapping[str, Any]

HEADER_BYTES = 16 << 10
HEADER_FIELDS = 100
TARGET_BYTES = 8 << 10  # of a path and its query
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_THIS_MACHINE = Networks(("127.0.0.0/8", "::1/128"))
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_ONCE = (b"host", b"authorization", b"content-type", b"content-length", b"origin", b"x-csrf-token", b"sec-fetch-site")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]{1,253})(?::[0-9]{1,5})?")
_ORIGIN = re.compile(rb"(https?)://([^/]+)")
_FORWARDED = 20  # addresses of a X-Forwarded-For that are looked at


@dataclass(frozen=True, slots=True)
class Asking:
    """client: address of who asks, "" when not known. user: whom the reverse proxy names, "" for nobody. secure: by HTTPS.
    own: whether a browser said that it comes from a page of ours; None: no browser said anything. root: where the reverse proxy has put
    us, as in "/spam"; "" for a host of our own."""

    client: str
    user: str
    secure: bool
    own: bool | None
    root: str
    fields: Mapping[bytes, bytes]

    def text(self, name: bytes) -> str:
        """A field, "" where there is none."""
        return self.fields.get(name, b"").decode("latin-1")


class Reader:
    """Reads the head of requests as the settings say."""

    def __init__(self, web: Web) -> None:
        self._hosts = frozenset(web.hosts or (*LOOPBACK, web.place.host))
        self._proxies = Networks(web.proxy.networks if web.proxy else ())
        self._proxy = web.proxy or WebProxy(())
        self._open = web.tls is not None or web.place.host in _THIS_MACHINE

    def read(self, scope: Scope) -> Asking:
        """RefusalError: it is for somebody else (421), too long (414, 431), contradicts itself (400), did not come by the proxy (403)."""
        fields = scope["headers"]
        self._check_host([value for name, value in fields if name == b"host"])
        _check_size(scope, fields)
        _check_single(fields)
        found = _joined(fields)
        peer = _plain((scope.get("client") or ("",))[0])
        proxied = bool(peer) and peer in self._proxies
        if not (proxied or self._open or (peer and peer in _THIS_MACHINE)):
            raise refusal(403, "ask by way of the reverse proxy")
        user = self._user(found) if proxied else ""
        secure = scope["scheme"] == "https" or (proxied and found.get(b"x-forwarded-proto", b"").lower() == b"https")
        client = self._client(peer, found.get(b"x-forwarded-for", b"")) if proxied else peer
        return Asking(client, user, secure, _own(found, secure=secure), self._proxy.path if proxied else "", found)

    def _check_host(self, given: Sequence[bytes]) -> None:
        """Whoever has made a browser ask us by another name (DNS rebinding) hears nothing."""
        match = _HOST.fullmatch(given[0].decode("latin-1").lower()) if len(given) == 1 else None
        if match is None or match[1].strip("[]").rstrip(".") not in self._hosts:
            raise refusal(421, "this server goes by other names: `web: {hosts: […]}` of the configuration lists them")

    def _user(self, fields: Mapping[bytes, bytes]) -> str:
        if not self._proxy.user_header:
            return ""
        try:
            name = fields.get(self._proxy.user_header.lower().encode(), b"").decode("utf-8")
        except UnicodeDecodeError:
            name = "\0"
        if not name.isprintable() or len(name) > 255 or "," in name:
            raise refusal(400, "the reverse proxy names nobody that could be")
        return name

    def _client(self, peer: str, forwarded: bytes) -> str:
        """The last address that was written by a proxy of ours and is none of them."""
        for text in reversed(forwarded.decode("latin-1").split(",")[-_FORWARDED:]):
            address = _plain(text.strip())
            if not address:
                break
            if address not in self._proxies:
                return address
        return peer


def _check_size(scope: Scope, fields: Sequence[tuple[bytes, bytes]]) -> None:
    if len(scope["raw_path"]) + len(scope["query_string"]) > TARGET_BYTES:
        raise refusal(414, f"an address has at most {TARGET_BYTES >> 10} KiB")
    if len(fields) > HEADER_FIELDS or sum(len(name) + len(value) + 4 for name, value in fields) > HEADER_BYTES:
        raise refusal(431, f"the header has more than {HEADER_FIELDS} fields or {HEADER_BYTES >> 10} KiB")


def _check_single(fields: Sequence[tuple[bytes, bytes]]) -> None:
    """Which of two would count is what somebody in front of us may see otherwise, and where the request ends, too: nothing of what may
    follow is looked at (RFC 9112, 6.1)."""
    names = [name for name, _ in fields]
    for name in _ONCE:
        if names.count(name) > 1:
            raise refusal(400, f"the field {name.decode()} is there twice", Connection="close")
    if b"transfer-encoding" in names and b"content-length" in names:
        raise refusal(400, "a length and chunks contradict each other", Connection="close")


def _joined(fields: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        separator = b"; " if name == b"cookie" else b", "
        found[name] = found[name] + separator + value if name in found else value
    return found


def _own(fields: Mapping[bytes, bytes], *, secure: bool) -> bool | None:
    """Whether a request comes from a page of ours, as browsers say (Fetch, Sec-Fetch-Site and Origin). secure: ours has come by HTTPS,
    so that one that has not is not ours, whatever its name."""
    if b"sec-fetch-site" in fields:
        return fields[b"sec-fetch-site"] == b"same-origin"
    if b"origin" not in fields:
        return None
    match = _ORIGIN.fullmatch(fields[b"origin"].lower())
    return match is not None and match[2] == fields[b"host"].lower() and (not secure or match[1] == b"https")


def _plain(text: str) -> str:
    """An address as it is usually written; "" when it is none."""
    try:
        return plain_address(text.strip("[]"))
    except ValueError:
        return ""
