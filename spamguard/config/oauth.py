"""Tokens for accounts whose provider takes no passwords (RFC 6749).

A person makes a refresh token once, by `device_login` (RFC 8628; Microsoft) or with a tool of the
provider; it is the first line of the account's token file. `access_token` trades it for a token
that serves for one login. A provider may send a new refresh token then, which is kept.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from spamguard.config.accounts import Account, OAuth
from spamguard.errors import SecretError
from spamguard.storage import replace_private

_SECONDS = 30.0  # for one answer
_MAX_BYTES = 100_000  # of one answer


def access_token(account: Account, oauth: OAuth) -> str:
    """Return a token to log in with. SecretError: there is none."""
    try:
        old = oauth.token_file.read_text("utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(
            f"{account.name}: {oauth.token_file}: no token there ({error}): make one with "
            f"`spamguard account login {account.name}`"
        ) from error
    fields = {"grant_type": "refresh_token", "refresh_token": old}
    if oauth.client_secret_file is not None:
        secret = oauth.client_secret_file.read_text("utf-8").partition("\n")[0].strip()
        fields["client_secret"] = secret
    answer = _ask(account, account.provider.token_url, fields | {"client_id": oauth.client_id})
    if token := answer.get("access_token"):
        if (new := answer.get("refresh_token", old)) != old:
            with suppress(PermissionError):  # the old one serves on until it expires
                _keep(oauth, new)
        return str(token)
    raise SecretError(
        f"{account.name}: {_reason(answer)}: make a new token with `spamguard account login "
        f"{account.name}`"
    )


def device_login(account: Account, oauth: OAuth, tell: Callable[[str, str], object]) -> None:
    """Let a person allow this program to read the account's mail, and keep the token.

    Parameters
    ----------
    tell : called with the address of a page, and the code to type in there.
    """
    provider = account.provider
    if not provider.device_url:
        raise SecretError(f"{account.name}: {account.preset} has no login by device code")
    start = _ask(
        account, provider.device_url, {"client_id": oauth.client_id, "scope": provider.scope}
    )
    if "device_code" not in start:
        raise SecretError(f"{account.name}: {_reason(start)}: check client_id")
    tell(str(start.get("verification_uri", "")), str(start.get("user_code", "")))
    fields = {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "client_id": oauth.client_id,
        "device_code": str(start["device_code"]),
    }
    end = time.monotonic() + min(int(start.get("expires_in", 900)), 1800)
    pause = min(int(start.get("interval", 5)), 60)
    while time.monotonic() < end:
        time.sleep(pause)
        answer = _ask(account, provider.token_url, fields)
        if "refresh_token" in answer:
            _keep(oauth, str(answer["refresh_token"]))
            return
        if answer.get("error") == "slow_down":
            pause += 5
        elif answer.get("error") != "authorization_pending":
            raise SecretError(f"{account.name}: {_reason(answer)}: try again")
    raise SecretError(f"{account.name}: nobody typed in the code in time: try again")


def _keep(oauth: OAuth, token: str) -> None:
    replace_private(oauth.token_file, [f"{token}\n".encode()])


def _reason(answer: Mapping[str, Any]) -> str:
    text = str(answer.get("error_description") or answer.get("error") or "no token came")
    return text.splitlines()[0][:200]


def _ask(account: Account, url: str, fields: Mapping[str, str]) -> Mapping[str, Any]:
    """The provider's answer; a refusal is one, too."""
    request = urllib.request.Request(url, urllib.parse.urlencode(fields).encode())  # noqa: S310  of a preset
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310
            text = response.read(_MAX_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(_MAX_BYTES)
    except OSError as error:
        raise SecretError(f"{account.name}: {url} cannot be reached ({error})") from error
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise SecretError(f"{account.name}: {url}: the answer is no JSON") from error
    if not isinstance(answer, dict):
        raise SecretError(f"{account.name}: {url}: the answer is no mapping")
    return answer
