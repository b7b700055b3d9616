"""Settings as YAML: everything that is in force, in the layout of the file, so that it can be read as a file again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import yaml

from spamguard.config.schema import (
    POLICY,
    CertificatePart,
    FilePart,
    HamEvidencePart,
    HistoryPart,
    HopPart,
    LimitsPart,
    ListenerPart,
    Part,
    RulePart,
    ScannerLimitsPart,
    ScannerPart,
    ScoringPart,
    TeachByMailPart,
    TeachPart,
    WatchPart,
    WebLimitsPart,
    WebPart,
    WebProxyPart,
)
from spamguard.settings import (
    Certificate,
    DoorLimits,
    HamEvidence,
    History,
    Hop,
    Listener,
    Rule,
    Scanner,
    ScannerLimits,
    Scoring,
    Settings,
    Teach,
    TeachByMail,
    Watch,
    Web,
    WebLimits,
    WebProxy,
)

_PARTS: dict[type[Any], type[Part]] = {
    Hop: HopPart,
    Rule: RulePart,
    DoorLimits: LimitsPart,
    Certificate: CertificatePart,
    ScannerLimits: ScannerLimitsPart,
    Scoring: ScoringPart,
    History: HistoryPart,
    HamEvidence: HamEvidencePart,
    Teach: TeachPart,
    Web: WebPart,
    WebProxy: WebProxyPart,
    WebLimits: WebLimitsPart,
}


def effective(settings: Settings) -> str:
    """The whole configuration. It holds names of key files, never their contents."""
    return yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True, width=120)


def plain(settings: Settings) -> dict[str, Any]:
    """The same as mappings, lists, texts and numbers."""
    given = {name: _part(value) for name, value in _values(settings).items()}
    given["listeners"] = [_with_policy(ListenerPart, one) for one in settings.listeners]
    given["scanners"] = [_with_policy(ScannerPart, one) for one in settings.scanners]
    given["watch"] = [_watch(one) for one in settings.watch]
    given["aliases"] = dict(settings.aliases)
    return _written(FilePart, given)


def _with_policy(kind: type[Part], door: Listener | Scanner) -> Part:
    given = _values(door)
    policy = given.pop("policy")
    given |= {name: getattr(policy, name) for name in POLICY if name in kind.model_fields}
    return kind.model_construct(**{name: _part(value) for name, value in given.items()})


def _watch(watch: Watch) -> Part:
    return WatchPart.model_construct(**_inside(watch) | {"folders": dict(watch.folders)})


def _part(value: Any) -> Any:
    """A value of the settings as a part of the file."""
    if isinstance(value, tuple):
        return [_part(one) for one in value]
    kind = _PARTS.get(type(value))
    if isinstance(value, TeachByMail):
        return TeachByMailPart.model_construct(**_inside(value) | {"addresses": dict(value.addresses)})
    return value if kind is None else kind.model_construct(**_inside(value))


def _inside(value: Any) -> dict[str, Any]:
    return {name: _part(one) for name, one in _values(value).items()}


def _values(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}


def _written(kind: type[Part], given: dict[str, Any]) -> dict[str, Any]:
    return kind.model_construct(**given).model_dump(by_alias=True)
