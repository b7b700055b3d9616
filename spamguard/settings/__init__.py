"""What the parts of the mail proxy are told about how to work. Data only; `config` reads it from YAML and checks it.

Durations are seconds, sizes bytes. Every default is the one that `config/spamguard.yaml` shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from spamguard.settings.endpoints import Endpoint as Endpoint
from spamguard.settings.endpoints import Place as Place
from spamguard.settings.endpoints import Protocol as Protocol
from spamguard.settings.endpoints import parse_endpoint as parse_endpoint
from spamguard.settings.endpoints import parse_scanner as parse_scanner

LOOPBACK = ("127.0.0.0/8", "::1/128")
"""Networks of this machine alone."""


class Position(StrEnum):
    """Where a listener sits: that decides what it may refuse."""

    BEFORE_QUEUE = "before-queue"  # Postfix smtpd_proxy_filter: the sender still waits for our answer
    AFTER_QUEUE = "after-queue"  # Postfix content_filter: a refusal would bounce to a forged sender
    STANDALONE = "standalone"  # we are the server that others deliver to


class Tls(StrEnum):
    """STARTTLS towards the next hop."""

    OFF = "off"
    OPPORTUNISTIC = "opportunistic"  # where it is offered; never on loopback and sockets; certificates are not checked (RFC 7435)
    REQUIRED = "required"  # checked against the system's authorities, or nothing is handed on


@dataclass(frozen=True, slots=True)
class Hop:
    """The next hop of a listener."""

    endpoint: Endpoint
    tls: Tls = Tls.OPPORTUNISTIC
    connect_seconds: float = 10.0
    command_seconds: float = 300.0  # RFC 5321, section 4.5.3.2
    data_seconds: float = 1800.0  # for the reply to the final dot: one attempt, so it waits for longer than clients do
    idle_seconds: float = 30.0  # how long a session is kept for the next message
    sessions: int = 50  # idle ones at most


class Action(StrEnum):
    """What is done with a judged message. Discarding does not exist."""

    TAG = "tag"
    QUARANTINE = "quarantine"
    REDIRECT = "redirect"
    DEFER = "defer"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Rule:
    """For messages with this label (a class, "spam" for every unwanted one, "unsure"), from this probability of being unwanted on."""

    label: str
    action: Action
    from_probability: float = 0.0
    to: str = ""  # address to redirect to
    subject_prefix: str = ""


class OnError(StrEnum):
    """What happens to a message that cannot be judged."""

    PASS = "pass"  # noqa: S105  # passed on unscored
    DEFER = "defer"  # 451: the client keeps it and tries again


FORGED = ("X-Spam", "X-Spam-*", "X-Spamd-*", "X-Spamguard*", "X-Bogosity", "X-Rspamd-*", "X-Spambayes-*", "X-CRM114-*", "X-DSPAM-*")
"""Names of verdict fields that are removed from what comes in: `*` at the end stands for anything."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do about a verdict. rules: the first that fits is taken, tagging otherwise.

    one_wrong_in: spam is what is so probable that at most one good message in so many is called spam, where enough mail was
    confirmed to know (`policy.FEWEST_CONFIRMED`); else, and with 0, the fixed threshold. tell_probability: in a header field.
    """

    rules: tuple[Rule, ...] = ()
    one_wrong_in: int = 0
    tell_probability: bool = False
    forged: tuple[str, ...] = FORGED
    on_error: OnError = OnError.PASS


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What one listener's clients may use, in each worker process."""

    message_bytes: int = 64 << 20
    header_bytes: int = 1 << 20
    recipients: int = 5000
    connections: int = 500
    connections_per_client: int = 250
    idle_commands: int = 100  # NOOP, RSET, VRFY, HELP, EHLO … since the last message
    wrong_commands: int = 20  # refused or not understood, since the last message
    bytes_in_flight: int = 1 << 30  # of all messages being received or handed on
    command_seconds: float = 300.0
    data_seconds: float = 180.0  # between two pieces of a message
    message_seconds: float = 1800.0  # for a whole one


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files for STARTTLS at a door."""

    certificate: Path
    key: Path


class OddBytes(StrEnum):
    """What happens to a message with bare CR, bare LF or NUL."""

    REFUSE = "refuse"
    NORMALISE = "normalise"  # CR to a blank, LF to CRLF, NUL removed


class TeachingUser(StrEnum):
    """Whose lesson it is that comes by mail."""

    ADDRESS = "address"  # the envelope sender's, in lower case
    LOCAL_PART = "local-part"


@dataclass(frozen=True, slots=True)
class TeachByMail:
    """Addresses to which people forward mail, as attachments, to say what it is. addresses: each with the class it stands for.

    senders: addresses, or *@DOMAIN, whose mail there is taken as lessons, if it also comes from one of the networks `clients`;
    anybody else's mail to these addresses is handed on like all mail.
    """

    addresses: tuple[tuple[str, str], ...]
    senders: tuple[str, ...]
    clients: tuple[str, ...] = LOOPBACK
    user: TeachingUser = TeachingUser.ADDRESS


@dataclass(frozen=True, slots=True)
class Listener:
    """One door and where its mail goes."""

    endpoint: Endpoint
    position: Position
    next_hop: Hop
    policy: Policy = field(default_factory=Policy)
    limits: DoorLimits = field(default_factory=DoorLimits)
    odd_bytes: OddBytes | None = None  # None: normalise after-queue, refuse elsewhere
    trusted: tuple[str, ...] = LOOPBACK  # networks whose XFORWARD and XCLIENT are believed
    clients: tuple[str, ...] = LOOPBACK  # networks that may send at all
    tls: Certificate | None = None
    hostname: str = ""  # for the greeting, EHLO and Received; empty: this machine's name
    teach: TeachByMail | None = None


@dataclass(frozen=True, slots=True)
class ScannerLimits:
    """What the clients of one scanner may use, in each worker process."""

    message_bytes: int = 64 << 20
    connections: int = 500
    connections_per_client: int = 250
    bytes_in_flight: int = 1 << 30  # of all messages being received or judged
    command_seconds: float = 300.0  # for the next request or command
    data_seconds: float = 60.0  # between two pieces of one
    message_seconds: float = 600.0  # for a whole one


@dataclass(frozen=True, slots=True)
class Scanner:
    """A door that judges for other programs, which hand the mail on themselves: they speak as to rspamd, to SpamAssassin or to a milter.

    clients: networks that may ask. trusted: those whose word on whose mail it is, and whom it comes from, is believed. teachers:
    those that may teach; so may whoever knows the password, where the protocol has one: the first line of `password_file`.
    reject_from, quarantine_from, greylist_from: probability of being unwanted from which on clients are told to refuse a message, to
    hold it back, or to have it sent again; None: never. hostname: as for a `Listener`. The policy has no rules.
    """

    endpoint: Endpoint
    policy: Policy = field(default_factory=Policy)
    limits: ScannerLimits = field(default_factory=ScannerLimits)
    clients: tuple[str, ...] = LOOPBACK
    trusted: tuple[str, ...] = LOOPBACK
    teachers: tuple[str, ...] = ()
    password_file: Path | None = None
    reject_from: float | None = None
    quarantine_from: float | None = None  # milters only
    greylist_from: float | None = None
    hostname: str = ""

    @property
    def teaches(self) -> bool:
        """Whether anybody may teach there."""
        return bool(self.teachers) or self.password_file is not None


@dataclass(frozen=True, slots=True)
class Scoring:
    """How judging is run. seconds: deadline of one message in a scorer process."""

    seconds: float = 8.0
    scorers: int = 1  # processes for each worker


@dataclass(frozen=True, slots=True)
class History:
    """How much of what was judged is remembered, for `explain ID` and `learn --id`. No bodies are kept.

    subjects, addresses: whether these are, and the words that stood there.
    """

    days: int = 30
    size: int = 512 << 20  # bytes
    subjects: bool = True
    addresses: bool = True


@dataclass(frozen=True, slots=True)
class HamEvidence:
    """What else than a move says that a message in a ham folder is ham. read_after_seconds: read, and then left there for so long."""

    answered: bool = False
    flagged: bool = False
    read_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """Maildirs in which moving mail teaches. maildir: an absolute path whose parts may have * and ?.

    user: whose they all are; empty: what the wildcards stand for, or the owner. folders: pattern of a folder's name to its role, a
    class or one of neutral, trash, ignored; the first that fits, then Dovecot's word, then common names. we_file: whether spam is
    filed into a folder by us, or by others as our header says; None: if a listener delivers into just this Maildir. spam_evidence:
    keywords that say that a message is spam.
    """

    maildir: str
    user: str = ""
    folders: tuple[tuple[str, str], ...] = ()
    we_file: bool | None = None
    debounce_seconds: float = 1.0  # from the first sign of a change to looking
    rescan_seconds: float = 600.0  # between two looks at everything
    lessons_per_day: int = 1000  # of each user, within 24 hours; what is moved beyond that teaches nothing; 0: no limit
    ham_evidence: HamEvidence = field(default_factory=HamEvidence)
    spam_evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Teach:
    """Where programs of this machine hand lessons over. socket: None is teach.sock in the state directory.

    spool: a directory (mode 1733, or 3733 to be read by its group) in which they leave them while nobody listens; None: nowhere.
    for_others: accounts that may name somebody else as the user; root's and our own always may.
    """

    socket: Path | None = None
    mode: int = 0o666
    spool: Path | None = None
    for_others: tuple[str, ...] = ("dovecot", "vmail")
    lessons_per_day: int = 1000  # of each user, within 24 hours, by programs and by mail together; what is beyond is dropped; 0: no limit


@dataclass(frozen=True, slots=True)
class WebProxy:
    """The reverse proxy in front of page and API. networks: from where it connects; nobody else's word about a client is believed.

    user_header: the field in which it names the person whom it has asked for a password, "" for none; it must take that field out of
    what others send. operators: who of these is one. path: where on its host it has put us, as in /spam, which it takes off what is asked
    for; "" for a host of our own.
    """

    networks: tuple[str, ...]
    user_header: str = ""
    operators: tuple[str, ...] = ()
    path: str = ""


@dataclass(frozen=True, slots=True)
class WebLimits:
    """What those who ask page and API may use."""

    message_bytes: int = 64 << 20
    requests_per_minute: int = 6000  # of one person
    requests_per_minute_of_address: int = 6000  # of one client


@dataclass(frozen=True, slots=True)
class Web:
    """Where page and API are. hosts: names by which they are asked for; none: those of loopback and the address itself."""

    place: Place
    hosts: tuple[str, ...] = ()
    tls: Certificate | None = None
    proxy: WebProxy | None = None
    limits: WebLimits = field(default_factory=WebLimits)

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.place}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration. workers: processes that speak SMTP; 0: one for two cores.

    personal: whether mail is judged for each recipient by what that person has said. aliases: addresses, `*@DOMAIN` or parts before
    the @, each with the user, as `Watch` names users, whose mail that is; "" for nobody's. metrics: where monitors may ask; None: nowhere.
    web: page and API; None: there are none.
    """

    state: Path
    listeners: tuple[Listener, ...]
    workers: int = 0
    scoring: Scoring = field(default_factory=Scoring)
    history: History = field(default_factory=History)
    user: str = ""  # to run as, when started as root
    watch: tuple[Watch, ...] = ()
    watch_socket: Path | None = None  # of the process that opens people's mailboxes for us (`spamguard open-mailboxes`); None: we do
    teach: Teach | None = None
    personal: bool = False
    aliases: tuple[tuple[str, str], ...] = ()
    metrics: Place | None = None
    web: Web | None = None
    scanners: tuple[Scanner, ...] = ()

    @property
    def teaching(self) -> bool:
        """Whether lessons come by a socket, by mail or by what asks for verdicts."""
        return self.teach is not None or any(one.teach for one in self.listeners) or any(one.teaches for one in self.scanners)

    @property
    def doors(self) -> tuple[Listener | Scanner, ...]:
        """All that listens in the workers, in the order of their sockets."""
        return self.listeners + self.scanners
