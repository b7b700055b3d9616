"""The layout of the file: which keys there are, and the type of each. The defaults are those of `spamguard.settings`.

A model's field has the name of the dataclass field it fills and, as alias, the name it has in the file. Only what was given is
filled in (`given`); nothing here repeats a default.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from spamguard.config import values
from spamguard.settings import (
    Certificate,
    DoorLimits,
    HamEvidence,
    History,
    Hop,
    Listener,
    Policy,
    Rule,
    Scoring,
    Settings,
    Teach,
    TeachByMail,
    Watch,
)


class Part(BaseModel):
    """What all parts of the file have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @property
    def given(self) -> dict[str, Any]:
        """What was said, by the names that the dataclasses use."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _named(alias: str) -> Any:
    return Field(default=None, alias=alias)


def _needed(alias: str) -> Any:
    return Field(alias=alias)


def _tuples(given: dict[str, Any]) -> dict[str, Any]:
    """Lists as the settings hold them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


class HopPart(Part):
    """Fills `settings.Hop`."""

    endpoint: values.Target = _needed("to")
    tls: values.Secrecy = _named("tls")
    connect_seconds: values.Seconds = _named("connect")
    command_seconds: values.Seconds = _named("command")
    data_seconds: values.Seconds = _named("data")
    idle_seconds: values.Seconds = _named("idle")
    sessions: values.Count = _named("sessions")

    def build(self) -> Hop:
        """The value for the daemon."""
        return Hop(**self.given)


class RulePart(Part):
    """Fills `settings.Rule`."""

    label: values.Label = _needed("when")
    action: values.Deed = _needed("action")
    from_probability: values.Probability = _named("from_probability")
    to: values.Mailbox = _named("to")
    subject_prefix: values.Prefix = _named("subject_prefix")

    def build(self) -> Rule:
        """The value for the daemon."""
        return Rule(**self.given)


class LimitsPart(Part):
    """Fills `settings.DoorLimits`."""

    message_bytes: values.Size = _named("message_size")
    header_bytes: values.Size = _named("header_size")
    recipients: values.Count = _named("recipients")
    connections: values.Count = _named("connections")
    connections_per_client: values.Count = _named("connections_per_client")
    idle_commands: values.Count = _named("idle_commands")
    wrong_commands: values.Count = _named("wrong_commands")
    bytes_in_flight: values.Size = _named("size_in_flight")
    command_seconds: values.Seconds = _named("command_timeout")
    data_seconds: values.Seconds = _named("data_timeout")
    message_seconds: values.Seconds = _named("message_timeout")

    def build(self) -> DoorLimits:
        """The value for the daemon."""
        return DoorLimits(**self.given)


class CertificatePart(Part):
    """Fills `settings.Certificate`."""

    certificate: values.File = _needed("certificate")
    key: values.File = _needed("key")

    def build(self) -> Certificate:
        """The value for the daemon."""
        return Certificate(**self.given)


class TeachByMailPart(Part):
    """Fills `settings.TeachByMail`."""

    addresses: dict[values.TeachingAddress, values.Class] = Field(alias="addresses", min_length=1)
    senders: list[values.Senders] = Field(alias="senders", min_length=1)
    clients: list[values.Network] = _named("clients")
    user: values.LessonOf = _named("user")

    def build(self) -> TeachByMail:
        """The value for the daemon."""
        return TeachByMail(**_tuples(self.given) | {"addresses": tuple(self.addresses.items())})


class ListenerPart(Part):
    """Fills `settings.Listener` and its `settings.Policy`. speed_adjust: what the operator says of Postfix; for checks only."""

    endpoint: values.Address = _needed("listen")
    position: values.Where = _needed("position")
    next_hop: Annotated[HopPart, BeforeValidator(values.next_hop)] = _needed("next_hop")
    speed_adjust: values.Flag = Field(default=False, alias="speed_adjust")
    clients: list[values.Network] = _named("clients")
    trusted: list[values.Network] = _named("trusted")
    hostname: values.HostName = _named("hostname")
    tls: CertificatePart | None = _named("tls")
    odd_bytes: values.Odd = _named("odd_bytes")
    on_error: values.Trouble = _named("on_error")
    one_wrong_in: values.OneWrongIn = _named("spam_threshold")
    tell_probability: values.Flag = _named("tell_probability")
    forged: list[values.FieldName] = _named("forged")
    rules: list[RulePart] = Field(default=[], alias="rules")
    limits: LimitsPart = Field(default=LimitsPart(), alias="limits")
    teach: TeachByMailPart | None = _named("teach")

    def build(self) -> Listener:
        """The value for the daemon."""
        given = _tuples(self.given)
        given.pop("speed_adjust", None)
        policy: dict[str, Any] = {name: given.pop(name) for name in POLICY if name in given}
        policy["rules"] = tuple(rule.build() for rule in self.rules)
        built: dict[str, Any] = {"next_hop": self.next_hop.build(), "limits": self.limits.build(), "tls": self.tls and self.tls.build()}
        built["teach"] = self.teach and self.teach.build()
        return Listener(**given | built, policy=Policy(**policy))


POLICY = ("rules", "one_wrong_in", "tell_probability", "forged", "on_error")
"""What the file says of a listener and the settings hold in its policy."""


class ScoringPart(Part):
    """Fills `settings.Scoring`."""

    seconds: values.Seconds = _named("deadline")
    scorers: values.Count = _named("scorers")

    def build(self) -> Scoring:
        """The value for the daemon."""
        return Scoring(**self.given)


class HistoryPart(Part):
    """Fills `settings.History`."""

    days: values.Days = _named("age")
    size: values.Size = _named("size")

    def build(self) -> History:
        """The value for the daemon."""
        return History(**self.given)


class HamEvidencePart(Part):
    """Fills `settings.HamEvidence`."""

    answered: values.Flag = _named("answered")
    flagged: values.Flag = _named("flagged")
    read_after_seconds: values.Seconds | None = _named("read_after")

    def build(self) -> HamEvidence:
        """The value for the daemon."""
        return HamEvidence(**self.given)


class WatchPart(Part):
    """Fills `settings.Watch`."""

    maildir: values.MaildirPattern = _needed("maildir")
    user: values.MailUser = _named("user")
    folders: dict[str, values.Role] = _named("folders")
    we_file: values.Flag | None = _named("we_file")
    debounce_seconds: values.Seconds = _named("debounce")
    rescan_seconds: values.Seconds = _named("rescan")
    lessons_per_day: values.Allowance = _named("lessons_per_day")
    ham_evidence: HamEvidencePart = Field(default=HamEvidencePart(), alias="ham_evidence")
    spam_evidence: list[values.Keyword] = _named("spam_evidence")

    def build(self) -> Watch:
        """The value for the daemon."""
        given = _tuples(self.given) | {"ham_evidence": self.ham_evidence.build()}
        if "folders" in given:
            given["folders"] = tuple(given["folders"].items())
        return Watch(**given)


class TeachPart(Part):
    """Fills `settings.Teach`."""

    socket: values.SocketPath | None = _named("socket")
    mode: values.Mode = _named("mode")
    spool: values.Directory | None = _named("spool")
    for_others: list[values.Account] = _named("for_others")
    lessons_per_day: values.Allowance = _named("lessons_per_day")

    def build(self) -> Teach:
        """The value for the daemon."""
        return Teach(**_tuples(self.given))


class FilePart(Part):
    """The whole file; fills `settings.Settings`."""

    state: values.Directory = _named("state")
    user: values.UserName = _named("user")
    workers: values.Processes = _named("workers")
    listeners: list[ListenerPart] = Field(alias="listeners", min_length=1)
    scoring: ScoringPart = Field(default=ScoringPart(), alias="scoring")
    history: HistoryPart = Field(default=HistoryPart(), alias="history")
    watch: list[Annotated[WatchPart, BeforeValidator(values.watch)]] = Field(default=[], alias="watch")
    watch_socket: values.SocketPath | None = _named("watch_socket")
    teach: TeachPart | None = _named("teach")
    personal: values.Flag = _named("personal")
    aliases: dict[values.Alias, values.MailUser] = Field(default={}, alias="aliases")
    metrics: values.Monitored | None = _named("metrics")

    def build(self) -> Settings:
        """The value for the daemon. `state` must be given."""
        listeners = tuple(one.build() for one in self.listeners)
        watch = tuple(one.build() for one in self.watch)
        built = {"listeners": listeners, "scoring": self.scoring.build(), "history": self.history.build(), "watch": watch}
        built["teach"] = self.teach and self.teach.build()
        return Settings(**self.given | built | {"aliases": tuple(self.aliases.items())})
