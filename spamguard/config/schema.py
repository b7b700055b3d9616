"""The layout of the file: which keys there are, and the type of each. The defaults are those of `spamguard.settings`.

A model's field has the name of the dataclass field it fills and, as alias, the name it has in the file. Only what was given is
filled in; nothing here repeats a default. What is said about each is for editors (`schema_for_editors`): short; the whole
is in config/spamguard.yaml.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from spamguard.config import files, values
from spamguard.settings import (
    Certificate,
    DoorLimits,
    HamEvidence,
    History,
    Hop,
    Listener,
    Policy,
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


class Part(BaseModel):
    """What all parts of the file have in common. fills: the dataclass of `spamguard.settings` that a part becomes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    fills: ClassVar[type[Any]]

    def build(self) -> Any:
        """The value for the daemon: a `fills` of what was said, its own defaults for all else."""
        return self.fills(**self._built())

    def _built(self) -> dict[str, Any]:
        return {name: _settled(getattr(self, name)) for name in self.model_fields_set}

    @classmethod
    def parts(cls) -> dict[str, type[Part]]:
        """The parts inside this one, by their keys in the file."""
        found = {str(one.alias): _part_in(one.annotation) for one in cls.model_fields.values()}
        return {key: part for key, part in found.items() if part is not None}


def _part_in(annotation: Any) -> type[Part] | None:
    """The part that a field holds, in one of its forms, or a list of."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next((part for one in get_args(annotation) if (part := _part_in(one)) is not None), None)


def _named(alias: str, about: str) -> Any:
    """None where nothing was said, whatever the type."""
    return Field(default=None, alias=alias, description=about)


def _needed(alias: str, about: str, least: int | None = None) -> Any:
    """least: how many of them there must be."""
    return Field(alias=alias, description=about, min_length=least)


def _settled(value: Any) -> Any:
    """As the settings hold it: parts built, lists as tuples, mappings as tuples of pairs."""
    if isinstance(value, Part):
        return value.build()
    if isinstance(value, list):
        return tuple(_settled(one) for one in value)
    return tuple(value.items()) if isinstance(value, dict) else value


POLICY = ("rules", "one_wrong_in", "tell_probability", "forged", "on_error")
"""What the file says of a listener or a scanner and the settings hold in its policy."""


def _with_policy(built: dict[str, Any]) -> dict[str, Any]:
    policy = {name: built.pop(name) for name in POLICY if name in built}
    return built | {"policy": Policy(**policy)}


class HopPart(Part):
    fills = Hop

    endpoint: values.Target = _needed("to", "Where mail goes on: smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path")
    tls: values.Secrecy = _named("tls", "STARTTLS towards it; required: with a certificate that is checked")
    connect_seconds: values.Seconds = _named("connect", "How long to wait for a connection; then the client is told to come again")
    command_seconds: values.Seconds = _named("command", "How long to wait for each answer")
    data_seconds: values.Seconds = _named("data", "How long to wait for the answer to the whole message")
    idle_seconds: values.Seconds = _named("idle", "How long an open session is kept for the next message")
    sessions: values.Count = _named("sessions", "Open sessions kept at most, in each worker")


class RulePart(Part):
    fills = Rule

    label: values.Label = _needed("when", "A class; spam: every unwanted one; unsure")
    action: values.Deed = _needed("action", "What is done; defer and reject only before the queue")
    from_probability: values.Probability = _named("from_probability", "Probability of being unwanted from which on the rule fits")
    to: values.Mailbox = _named("to", "Whom redirect sends it to")
    subject_prefix: values.Prefix = _named("subject_prefix", "Put before the subject; breaks DKIM signatures")


class LimitsPart(Part):
    fills = DoorLimits

    message_bytes: values.Size = _named("message_size", "Of one message; announced as SIZE")
    header_bytes: values.Size = _named("header_size", "Of the header of one message")
    recipients: values.Count = _named("recipients", "Of one message")
    connections: values.Count = _named("connections", "At once")
    connections_per_client: values.Count = _named("connections_per_client", "At once, of one address; of IPv6, of one /64")
    idle_commands: values.Count = _named("idle_commands", "NOOP, RSET, VRFY … since the last message")
    wrong_commands: values.Count = _named("wrong_commands", "Refused or not understood, since the last message")
    bytes_in_flight: values.Size = _named("size_in_flight", "Of all messages being received or handed on")
    command_seconds: values.Seconds = _named("command_timeout", "For the next command")
    data_seconds: values.Seconds = _named("data_timeout", "Between two pieces of a message")
    message_seconds: values.Seconds = _named("message_timeout", "For a whole message, however steadily it drips")


class CertificatePart(Part):
    fills = Certificate

    certificate: values.File = _needed("certificate", "PEM file with the certificate and those above it")
    key: values.File = _needed("key", "PEM file with its private key")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        files.check_pair(self.certificate, self.key)
        return self


class TeachByMailPart(Part):
    fills = TeachByMail

    addresses: dict[values.TeachingAddress, values.Class] = _needed(
        "addresses", "Addresses to forward mail to, each with the class it stands for", least=1
    )
    senders: list[values.Senders] = _needed("senders", "Whose mail is taken so: addresses, or *@DOMAIN", least=1)
    clients: list[values.Network] = _named("clients", "Networks it must come from")
    user: values.LessonOf = _named("user", "Whose lesson it is: the sender's whole address, or its local-part")


class ListenerPart(Part):
    """A door for mail. speed_adjust: what the operator says of Postfix; for checks only."""

    fills = Listener

    endpoint: values.Address = _needed("listen", "Where mail comes in: smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT, with an IP address")
    position: values.Where = _needed("position", "Where it stands in the mail's way; decides what may be refused")
    next_hop: Annotated[HopPart, BeforeValidator(values.in_one_word("to"), json_schema_input_type=values.Target | HopPart)] = _needed(
        "next_hop", "Where mail goes on: in one word, or with how"
    )
    speed_adjust: values.Flag = Field(
        default=False, alias="speed_adjust", description="Whether Postfix has smtpd_proxy_options=speed_adjust here; for checks only"
    )
    clients: list[values.Network] = _named("clients", "Networks that may send here at all")
    trusted: list[values.Network] = _named("trusted", "Networks whose XFORWARD and XCLIENT are believed")
    hostname: values.HostName = _named("hostname", "For the greeting, EHLO and Received; empty: this machine's")
    tls: CertificatePart | None = _named("tls", "STARTTLS at this listener; null: not offered")
    odd_bytes: values.Odd = _named(
        "odd_bytes", "Messages with bare CR, bare LF or NUL, which smuggle; auto: normalise after the queue, refuse elsewhere"
    )
    on_error: values.Trouble = _named("on_error", "A message that cannot be judged: pass it on unscored, or defer")
    one_wrong_in: values.OneWrongIn = _named(
        "spam_threshold", "From when on a message is called spam: fixed, or at most one good message in so many, as 1 in 1000"
    )
    tell_probability: values.Flag = _named("tell_probability", "Whether recipients see the exact probability")
    forged: list[values.FieldName] = _named("forged", "Verdict fields removed from what comes in; * at the end for anything")
    rules: list[RulePart] = _named("rules", "What is done beyond tagging: the first that fits")
    limits: LimitsPart = _named("limits", "What clients may use, in each worker")
    teach: TeachByMailPart | None = _named("teach", "Addresses to which people forward mail to say what it is")

    def _built(self) -> dict[str, Any]:
        return _with_policy({name: value for name, value in super()._built().items() if name != "speed_adjust"})


class ScannerLimitsPart(Part):
    fills = ScannerLimits

    message_bytes: values.Size = _named("message_size", "Of one message")
    connections: values.Count = _named("connections", "At once")
    connections_per_client: values.Count = _named("connections_per_client", "At once, of one address; of IPv6, of one /64")
    bytes_in_flight: values.Size = _named("size_in_flight", "Of all messages being received or judged")
    command_seconds: values.Seconds = _named("command_timeout", "For the next request or command")
    data_seconds: values.Seconds = _named("data_timeout", "Between two pieces of one")
    message_seconds: values.Seconds = _named("message_timeout", "For a whole one, however steadily it drips")


class ScannerPart(Part):
    fills = Scanner

    endpoint: values.Asked = _needed(
        "listen", "Where programs ask: rspamd://ADDRESS:PORT, spamd://ADDRESS:PORT, milter://ADDRESS:PORT or milter:/path/to/socket"
    )
    clients: list[values.Network] = _named("clients", "Networks that may ask at all")
    trusted: list[values.Network] = _named("trusted", "Networks that are believed whose mail it is and whom it comes from")
    teachers: list[values.Network] = _named("teachers", "Networks that may teach")
    password_file: values.Secret | None = _named("password_file", "A file whose first line lets others teach too; null: nobody")
    reject_from: values.Probability | None = _named("reject_from", "From when on clients are told to refuse a message; null: never")
    quarantine_from: values.Probability | None = _named("quarantine_from", "From when on milters hold it back (Postfix: hold); null: never")
    greylist_from: values.Probability | None = _named("greylist_from", "From when on they are told to have it sent again; null: never")
    hostname: values.HostName = _named("hostname", "By which we go in header fields; empty: this machine's")
    on_error: values.Trouble = _named("on_error", "A message that cannot be judged: let it pass, or defer")
    one_wrong_in: values.OneWrongIn = _named("spam_threshold", "From when on a message is called spam; as for a listener")
    tell_probability: values.Flag = _named("tell_probability", "Whether clients are told the exact probability")
    forged: list[values.FieldName] = _named("forged", "Verdict fields that clients are told to remove; * at the end for anything")
    limits: ScannerLimitsPart = _named("limits", "What clients may use, in each worker")

    def _built(self) -> dict[str, Any]:
        return _with_policy(super()._built())


class ScoringPart(Part):
    fills = Scoring

    seconds: values.Seconds = _named("deadline", "For one message; its process is killed then, and on_error decides")
    scorers: values.Count = _named("scorers", "Processes that judge, for each worker")


class HistoryPart(Part):
    fills = History

    days: values.Days = _named("age", "How long it is remembered what was judged: whole days")
    size: values.Size = _named("size", "How much of it is remembered at most")
    subjects: values.Flag = _named("subjects", "Whether subjects are remembered, and words that stood there")
    addresses: values.Flag = _named("addresses", "Whether addresses and users are remembered; without, people cannot be shown their mail")


class HamEvidencePart(Part):
    fills = HamEvidence

    answered: values.Flag = _named("answered", "Whether having been answered says that a message is ham")
    flagged: values.Flag = _named("flagged", "Whether being flagged says so")
    read_after_seconds: values.Seconds | None = _named("read_after", "How long after it was read and left where it is; null: never")


class WatchPart(Part):
    fills = Watch

    maildir: values.MaildirPattern = _needed("maildir", "An absolute path; * and ? stand for any name")
    user: values.MailUser = _named("user", "Whose they all are; empty: what the wildcards stand for, or the owner")
    folders: dict[str, values.Role] = _named(
        "folders", "What moving into a folder says: pattern of its name to a class, neutral, trash or ignored"
    )
    we_file: values.Flag | None = _named(
        "we_file", "Whether what we tag as spam is filed into Junk; null: if a listener delivers into just this Maildir"
    )
    debounce_seconds: values.Seconds = _named("debounce", "From the first sign of a change to looking")
    rescan_seconds: values.Seconds = _named("rescan", "Between two looks at everything")
    lessons_per_day: values.Allowance = _named("lessons_per_day", "Of each user, within 24 hours; 0: no limit")
    ham_evidence: HamEvidencePart = _named("ham_evidence", "What else says that a message is ham")
    spam_evidence: list[values.Keyword] = _named("spam_evidence", "Keywords that say that a message is spam")


class TeachPart(Part):
    fills = Teach

    socket: values.SocketPath | None = _named("socket", "Where; null: teach.sock in the state directory")
    mode: values.Mode = _named("mode", "Who may connect, in octal digits")
    spool: values.Directory | None = _named("spool", "Where lessons are left while nobody listens; null: nowhere")
    for_others: list[values.Account] = _named("for_others", "Accounts that may name another user")
    lessons_per_day: values.Allowance = _named("lessons_per_day", "Of each user, within 24 hours; 0: no limit")


class WebProxyPart(Part):
    fills = WebProxy

    networks: list[values.Network] = _needed("networks", "From where the reverse proxy connects", least=1)
    user_header: values.HttpField = _named("user_header", "Field in which it names the person; empty: none")
    operators: list[values.Somebody] = _named("operators", "Who of these people is an operator")
    path: values.Below = _named("path", "Where on its host it has put us, as in /spam; empty: a host of our own")


class WebLimitsPart(Part):
    fills = WebLimits

    message_bytes: values.Size = _named("message_size", "Of a message that is handed over")
    requests_per_minute: values.Count = _named("requests_per_minute", "Of one person")
    requests_per_minute_of_address: values.Count = _named("requests_per_minute_of_address", "Of one client")


class WebPart(Part):
    fills = Web

    place: values.Monitored = _needed("listen", "Where: ADDRESS:PORT")
    hosts: list[values.Host] = _named("hosts", "Names by which they are asked for; none: those of loopback and the address itself")
    tls: CertificatePart | None = _named("tls", "HTTPS; needed where others than this machine or a reverse proxy can connect")
    proxy: WebProxyPart | None = _named("proxy", "The reverse proxy in front of them; null: there is none")
    limits: WebLimitsPart = _named("limits", "What those who ask may use")


class FilePart(Part):
    """The whole file."""

    fills = Settings

    state: values.Directory = _named("state", "Directory of the filter: key, receipts, tables, history, quarantine")
    user: values.UserName = _named("user", "Whom to run as when started as root; empty: the owner of the state directory")
    workers: values.Processes = _named("workers", "Processes that speak SMTP; 0: one for two cores")
    listeners: list[ListenerPart] = _named("listeners", "Where mail comes in")
    scanners: list[ScannerPart] = _named("scanners", "Where other programs ask for verdicts")
    scoring: ScoringPart = _named("scoring", "How messages are judged")
    history: HistoryPart = _named("history", "What is remembered of what was judged")
    watch: list[
        Annotated[WatchPart, BeforeValidator(values.in_one_word("maildir"), json_schema_input_type=values.MaildirPattern | WatchPart)]
    ] = _named("watch", "Maildirs in which moving mail teaches: in one word, or with how")
    watch_socket: values.SocketPath | None = _named("watch_socket", "Of the process that opens people's mailboxes for us; null: we do")
    teach: TeachPart | None = _named("teach", "A Unix socket on which programs of this machine hand lessons over; null: none")
    personal: values.Flag = _named("personal", "Whether mail is judged for each recipient by what that person has said")
    aliases: dict[values.Alias, values.MailUser] = _named("aliases", "Addresses, each with the user whose mail that is; empty: nobody's")
    metrics: values.Monitored | None = _named("metrics", "Where monitors may ask by HTTP: ADDRESS:PORT; null: nowhere")
    web: Annotated[WebPart, BeforeValidator(values.in_one_word("listen"), json_schema_input_type=values.Monitored | WebPart)] | None = (
        _named("web", "Web page and HTTP API: where alone, or with how; null: there are none")
    )

    def _built(self) -> dict[str, Any]:
        return {"listeners": ()} | super()._built()
