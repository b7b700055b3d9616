"""Tokens for accounts whose provider takes no passwords (RFC 6749).

A person makes a refresh token once, by `device_login` (RFC 8628; Microsoft) or with a tool of the
provider; it is the first line of the account's token file. `access_token` trades it for a token
that serves for one login. A provider may send a new refresh token then, which is kept.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress

import msgspec

from spamguard.config.accounts import Account, OAuth
from spamguard.errors import SecretError
from spamguard.storage import replace_private

_SECONDS = 30.0  # for one answer
_MAX_BYTES = 100_000  # of one answer


class _Answer(msgspec.Struct):
    access_token: str = ""
    refresh_token: str = ""
    device_code: str = ""
    user_code: str = ""
    verification_uri: str = ""
    interval: int = 5
    error: str = ""
    error_description: str = ""

    @property
    def reason(self) -> str:
        text = self.error_description or self.error or "no token came"
        return text.partition("\n")[0].strip()[:200]


def access_token(account: Account, oauth: OAuth) -> str:
    """Return a token to log in with. SecretError: there is none."""
    old = account.read_line(oauth.token_file)
    fields = {"grant_type": "refresh_token", "refresh_token": old, "client_id": oauth.client_id}
    if oauth.client_secret_file is not None:
        fields["client_secret"] = account.read_line(oauth.client_secret_file)
    answer = _ask(account, account.provider.token_url, fields)
    if not answer.access_token:
        remedy = f"make a new one, as with `spamguard account login {account.name}`"
        raise SecretError(f"{account.name}: the token is refused: {answer.reason}: {remedy}")
    if answer.refresh_token not in ("", old):
        with suppress(PermissionError):  # the old one serves on until it expires
            replace_private(oauth.token_file, [f"{answer.refresh_token}\n".encode()])
    return answer.access_token


def device_login(account: Account, oauth: OAuth, tell: Callable[[str, str], object]) -> None:
    """Let a person allow this program to read the account's mail, and keep the token.

    Parameters
    ----------
    tell : called with the address of a page, and the code to type in there.
    """
    provider = account.provider
    if not provider.device_url:
        raise SecretError(
            f"{account.preset} has no login by a code: make a refresh token with a tool of the "
            f"provider, and put it into {oauth.token_file}"
        )
    fields = {"client_id": oauth.client_id, "scope": provider.scope}
    answer = _ask(account, provider.device_url, fields)
    pause = min(answer.interval, 60)
    if answer.device_code:
        tell(answer.verification_uri, answer.user_code)
        fields["grant_type"] = "urn:ietf:params:oauth:grant-type:device_code"
        fields["device_code"] = answer.device_code
        answer.error = "authorization_pending"
    while answer.error in ("authorization_pending", "slow_down"):
        time.sleep(pause)
        pause += 5 * (answer.error == "slow_down")
        answer = _ask(account, provider.token_url, fields)
        if answer.refresh_token:
            replace_private(oauth.token_file, [f"{answer.refresh_token}\n".encode()])
            return
    raise SecretError(f"{account.name}: {answer.reason}: try again")


def _ask(account: Account, url: str, fields: dict[str, str]) -> _Answer:
    """The provider's answer; a refusal is one, too."""
    request = urllib.request.Request(url, urllib.parse.urlencode(fields).encode())  # noqa: S310  a preset's
    try:
        try:
            response = urllib.request.urlopen(request, timeout=_SECONDS)  # noqa: S310
        except urllib.error.HTTPError as refusal:
            response = refusal
        with response:
            return msgspec.json.decode(response.read(_MAX_BYTES), type=_Answer)
    except (OSError, msgspec.MsgspecError) as error:
        raise SecretError(f"{account.name}: {url}: no token from there: {error}") from error
