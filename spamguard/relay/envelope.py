"""What of an envelope goes out to a next hop: no parameter that it has not announced the extension for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from spamguard.wire.values import Recipient, Sender

Step = TypeVar("Step", Sender, Recipient)

_EXTENSION = {
    "SIZE": "SIZE",  # RFC 1870
    "BODY": "8BITMIME",  # RFC 6152
    "SMTPUTF8": "SMTPUTF8",  # RFC 6531
    "RET": "DSN",  # RFC 3461
    "ENVID": "DSN",
    "NOTIFY": "DSN",
    "ORCPT": "DSN",
}  # AUTH is not here: who has logged in with us is nothing to the next hop


def fitted(step: Step, extensions: Mapping[str, str]) -> Step:
    """The sender or recipient without the parameters that a hop with these extensions does not take."""
    if not step.parameters:
        return step
    return replace(step, parameters=tuple([one for one in step.parameters if _EXTENSION.get(one.keyword) in extensions]))


def needs_smtputf8(step: Sender | Recipient) -> bool:
    """Whether it can only be told to a hop that speaks SMTPUTF8. What goes beyond ASCII without saying so is the hop's to judge."""
    return any(parameter.keyword == "SMTPUTF8" for parameter in step.parameters)


def loses_dsn(step: Sender | Recipient, extensions: Mapping[str, str]) -> bool:
    """Whether wishes about delivery status notifications do not get through."""
    return "DSN" not in extensions and any(_EXTENSION.get(parameter.keyword) == "DSN" for parameter in step.parameters)
