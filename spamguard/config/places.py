"""Addresses as the file tells them: where to listen, where mail goes on, who may come. Each check is as those of `values`."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network

from spamguard.config import files
from spamguard.config.units import shown
from spamguard.settings import Endpoint, Place, parse_endpoint, parse_scanner

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):([0-9]{1,5})")
_HOST = re.compile(r"//([^/\[\]@]*):[0-9]+\Z")
_ADDRESSES = {"localhost": "127.0.0.1", "*": "0.0.0.0", "": "0.0.0.0"}  # noqa: S104  as words for what was meant


def endpoint(given: object) -> Endpoint:
    """Where mail is handed on to."""
    try:
        return parse_endpoint(given if isinstance(given, str) else "")
    except ValueError as error:
        raise ValueError(f"expected {_forms(error)}, found {shown(given)}{_in_brackets(given)}") from error


def _forms(error: ValueError) -> str:
    return str(error).rpartition("write ")[2]


def listen(given: object) -> Endpoint:
    """Where to listen: an IP address and a port."""
    try:
        found = parse_endpoint(given if isinstance(given, str) else "")
        ip_network(found.host)
    except ValueError as error:
        expected = "smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT with an IP address"
        raise ValueError(f"expected {expected}, found {shown(given)}{_instead(given)}") from error
    return found


def scanner(given: object) -> Endpoint:
    """Where programs ask: an IP address and a port, or a socket."""
    try:
        found = parse_scanner(given if isinstance(given, str) else "")
        if found.path is None:
            ip_network(found.host)
        else:
            files.socket(str(found.path))
    except ValueError as error:
        expected = "rspamd://ADDRESS:PORT, spamd://ADDRESS:PORT, milter://ADDRESS:PORT with an IP address, or milter:/path/to/socket"
        raise ValueError(f"expected {expected}, found {shown(given)}{_instead(given)}") from error
    return found


def _instead(given: object) -> str:
    """What to write for an address as other programs take it."""
    host = _HOST.search(str(given))
    better = _ADDRESSES.get(host[1]) if host else None
    return f": write {better} instead of {host[1] or 'nothing'}" if host and better else _in_brackets(given)


def _in_brackets(given: object) -> str:
    """The same for one of IPv6 as it is written elsewhere; with a zone (RFC 4007) there is no way to write it."""
    host = _HOST.search(str(given))
    if host is None or "%" in host[1]:
        return ""
    try:
        return f": write [{host[1]}] instead of {host[1]}" if ip_address(host[1]).version == 6 else ""
    except ValueError:
        return ""


def network(given: object) -> str:
    """Addresses of the network, as CIDR has them."""
    try:
        return str(ip_network(given)) if isinstance(given, str) else _no_network(given)
    except ValueError as error:
        if "host bits" not in str(error):
            return _no_network(given)
        raise ValueError(f"expected a network, found {given!r}, an address within {ip_network(str(given), strict=False)}") from error


def _no_network(given: object) -> str:
    raise ValueError(f"expected a network such as 192.0.2.0/24 or 2001:db8::/32, found {shown(given)}")


def place(given: object) -> Place:
    """An address and a port of this machine."""
    found = PLACE.fullmatch(given) if isinstance(given, str) else None
    try:
        if found and 1 <= int(found[3]) <= 65535:
            return Place(str(ip_address(found[1] or found[2])), int(found[3]))
    except ValueError:
        pass
    raise ValueError(f"expected ADDRESS:PORT with an IP address, such as 127.0.0.1:9110 or [::1]:9110, found {shown(given)}")


def host_name(given: object) -> str:
    """By which a page is asked for."""
    text = given.lower() if isinstance(given, str) else ""
    try:
        return str(ip_address(text))
    except ValueError:
        if NAME.fullmatch(text):
            return text
    raise ValueError(f"expected a host name or an IP address, without a port, found {shown(given)}")
