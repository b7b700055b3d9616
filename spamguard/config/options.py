"""The options: each one once, with its type, its default and one line about it.

The settings of the daemon are these dataclasses, and pydantic checks a file by them. A field's name
is its key in the file; its annotation carries the check, the doors at which it does something, if
not at all, and the line that editors show (`spamguard check --schema`). config/spamguard.yaml
explains each option to people and shows these defaults.

Durations are seconds, sizes bytes. Every process imports this, so it must not load pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from spamguard.config import types
from spamguard.config.accounts import Account, check_account
from spamguard.config.shared import SharedSettings, check_driver
from spamguard.config.types import (
    AT_LEAST_ONE,
    MAPPING,
    Checked,
    ConstantNumber,
    ConstantSeconds,
    Doors,
    Shorthand,
)
from spamguard.config.values import (
    Action,
    DigestPeriod,
    Endpoint,
    HostPort,
    OddBytes,
    OnError,
    Position,
    Protocol,
    TeachingUser,
    Tls,
    parse_endpoint,
    parse_scanner,
)
from spamguard.users import LESSON_SPOOL

ACCOUNTS_DIRECTORY = "imap"
"""In the state directory: the files of the process that speaks IMAP."""
ACCOUNTS_DOOR = Path(ACCOUNTS_DIRECTORY, "door.sock")
"""The socket, below the state directory, at which it has mail judged."""
ACCOUNTS_SOCKET = Path(ACCOUNTS_DIRECTORY, "mailboxes.sock")
"""The socket at which it shows the accounts as mailboxes."""
ACCOUNTS_SIGHTINGS = "accounts"
"""In the state directory: what the watcher of folders knows of accounts."""

__all__ = [
    "Account", "Action", "DigestPeriod", "Endpoint", "HostPort", "OddBytes", "OnError", "Position",
    "Protocol", "SharedSettings", "TeachSettings", "TeachingUser", "Tls", "Watch",
    "parse_endpoint", "parse_scanner",
]  # fmt: skip

LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
FORGED_FIELDS = (
    "X-Spam", "X-Spam-*", "X-Spamd-*", "X-Spamguard*", "X-Bogosity", "X-Rspamd-*",
    "X-Spambayes-*", "X-CRM114-*", "X-DSPAM-*", "X-Mailgun-Sflag", "X-Mailgun-Sscore", "X-Mras",
    "X-AOL-*", "X-Mox-*", "X-Haraka-*", "X-Microsoft-Antispam*", "X-Forefront-Antispam-*",
    "X-MS-Exchange-Organization-SCL",
)  # fmt: skip

# ---- listeners: mail comes in, is judged, and goes on


@dataclass(frozen=True)
class Hop:
    """The next hop of a listener."""

    to: Annotated[
        types.NextHopEndpoint,
        "The next hop: smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path",
    ]
    tls: Annotated[
        types.Tls,
        Doors(*Protocol, required=(Protocol.SMTP, Protocol.LMTP)),
        "STARTTLS to the next hop; required: its certificate must be valid",
    ] = Tls.OPPORTUNISTIC
    connect: ConstantSeconds = 10.0
    command: ConstantSeconds = 300.0  # for each reply: RFC 5321, section 4.5.3.2
    data: ConstantSeconds = 1800.0  # one attempt, so it waits for longer than clients do
    idle: ConstantSeconds = 30.0  # how long an open session waits for the next message
    sessions: ConstantNumber = 50  # that are idle, in each worker


_MAIL = (Protocol.SMTP, Protocol.LMTP)


@dataclass(frozen=True)
class Rule:
    """For messages with this verdict, from this probability of being unwanted on."""

    when: Annotated[types.Label, "A class, or unsure; spam means every unwanted class"]
    action: Annotated[
        types.Action,
        Doors(
            *Protocol,
            quarantine=(*_MAIL, Protocol.MILTER),
            redirect=_MAIL,
            defer=(*_MAIL, Protocol.RSPAMD, Protocol.MILTER),
            reject=(*_MAIL, Protocol.RSPAMD, Protocol.MILTER),
        ),
        "What to do, where that door can; defer and reject only before the queue",
    ]
    from_probability: Annotated[types.Probability, "Least probability of being unwanted"] = 0.0
    to: Annotated[types.MailAddress, "The recipient for redirect"] = ""
    subject_prefix: Annotated[
        types.SubjectPrefix, Doors(*_MAIL), "Text before the subject; breaks DKIM signatures"
    ] = ""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a door does about a verdict: the first rule that fits, tagging otherwise."""

    rules: Annotated[
        tuple[Rule, ...], "What to do beyond tagging; the first rule that fits counts"
    ] = ()
    spam_threshold: Annotated[
        types.SpamThreshold, "The probability from which on a message is called spam"
    ] = 0.95
    tell_probability: Annotated[
        types.Flag, "Show the exact probability to recipients and to clients of a scanner"
    ] = False
    on_error: Annotated[
        types.OnError, "What to do when a message cannot be judged: pass it on, or defer it"
    ] = OnError.PASS


@dataclass(frozen=True)
class ScannerLimits:
    """What the clients of one scanner may use, in each worker process."""

    message_size: Annotated[types.Size, "Maximum size of a message"] = 64 << 20
    connections: Annotated[types.Count, "Maximum of connections"] = 500
    connections_per_client: Annotated[
        types.Count, "Maximum of connections of an IPv4 address or IPv6 /64 network"
    ] = 250
    size_in_flight: ConstantNumber = 1 << 30  # of all messages being received, judged or passed on
    command_timeout: ConstantSeconds = 300.0  # for the next request or command
    data_timeout: ConstantSeconds = 60.0  # between two pieces of a message
    message_timeout: ConstantSeconds = 600.0


@dataclass(frozen=True)
class DoorLimits(ScannerLimits):
    """What one listener's clients may use, in each worker process; SIZE says `message_size`."""

    recipients: Annotated[types.Count, "Maximum of recipients of a message"] = 5000
    header_size: ConstantNumber = 1 << 20
    idle_commands: ConstantNumber = 100  # NOOP … since the last message; wrong ones count more
    data_timeout: ConstantSeconds = 180.0
    message_timeout: ConstantSeconds = 1800.0


@dataclass(frozen=True)
class Certificate:
    """PEM files for TLS at a door."""

    certificate: Annotated[types.ReadableFile, "PEM file with the certificate and its chain"]
    key: Annotated[types.ReadableFile, "PEM file with its private key"]


CheckedCertificate = Annotated[
    Certificate, Checked(lambda pem: types.check_key_pair(pem.certificate, pem.key))
]


@dataclass(frozen=True)
class TeachByMail:
    """Addresses to which people forward mail, as attachments, to say what it is."""

    addresses: Annotated[
        tuple[tuple[types.TeachingAddress, types.ClassName], ...],
        MAPPING,
        AT_LEAST_ONE,
        "Addresses for forwarded mail, each with the class that it teaches",
    ]
    senders: Annotated[
        tuple[types.SenderPattern, ...],
        AT_LEAST_ONE,
        "Senders who may teach: addresses, or *@DOMAIN",
    ]
    clients: Annotated[types.Networks, "Where it must come from"] = LOOPBACK_NETWORKS
    user: Annotated[
        types.TeachingUser, "The user of the lesson: the sender's address, or its local-part"
    ] = TeachingUser.ADDRESS


StripsResults = Annotated[
    types.Flag, "The mail server removes Authentication-Results that came with the message"
]


@dataclass(frozen=True)
class Listener(Policy):
    """One door for mail, and where its mail goes."""

    listen: Annotated[
        types.ListenerEndpoint,
        "Where mail comes in: smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT, with an IP address",
    ]
    position: Annotated[types.Position, "Position in the path of mail; decides what may be refused"]
    next_hop: Annotated[
        Hop, Shorthand("to"), "The next hop: its address, or a mapping with details"
    ]
    limits: Annotated[DoorLimits, "Limits for clients, in each worker"] = field(
        default_factory=DoorLimits
    )
    odd_bytes: Annotated[
        types.OddBytes,
        "Messages with bare CR, bare LF or NUL, which serve to smuggle; auto: normalise them "
        "after the queue, refuse them elsewhere",
    ] = None
    trusted: Annotated[types.Networks, "Networks whose XFORWARD and XCLIENT are trusted"] = (
        LOOPBACK_NETWORKS
    )
    clients: Annotated[types.Networks, "Networks that may connect"] = LOOPBACK_NETWORKS
    tls: Annotated[CheckedCertificate | None, "STARTTLS at this listener; null: not offered"] = None
    hostname: Annotated[
        types.HostName, "Name in the greeting, EHLO and Received; empty: this machine's name"
    ] = ""
    teach: Annotated[TeachByMail | None, "Addresses to which people forward mail to teach"] = None
    strips_authentication_results: StripsResults = False

    @property
    def believes_results(self) -> bool:
        """Whether servers of `authserv_ids` are believed here: they have had the mail before."""
        is_late = self.position is Position.AFTER_QUEUE or self.listen.protocol is Protocol.LMTP
        return is_late or self.strips_authentication_results


# ---- scanners: other programs ask for verdicts, and hand the mail on themselves


@dataclass(frozen=True)
class Scanner(Policy):
    """A door at which programs ask as they ask rspamd, SpamAssassin or a milter."""

    listen: Annotated[
        types.ScannerEndpoint,
        "Where to listen: rspamd://ADDRESS:PORT, spamd://ADDRESS:PORT, milter://ADDRESS:PORT "
        "or milter:/path/to/socket",
    ]
    limits: Annotated[ScannerLimits, "Limits for clients, in each worker"] = field(
        default_factory=ScannerLimits
    )
    clients: Annotated[types.Networks, "Networks that may connect"] = LOOPBACK_NETWORKS
    trusted: Annotated[
        types.Networks,
        "Networks that may name the recipient's user and the original client",
    ] = LOOPBACK_NETWORKS
    teachers: Annotated[
        types.Networks, Doors(Protocol.RSPAMD, Protocol.SPAMD), "Networks that may teach"
    ] = ()
    password_file: Annotated[
        types.SecretFile | None,
        Doors(Protocol.RSPAMD),
        "File whose first line is a password for teaching; null: none",
    ] = None
    strips_authentication_results: StripsResults = False

    @property
    def believes_results(self) -> bool:
        """Whether servers of `authserv_ids` are believed here."""
        return self.strips_authentication_results

    @property
    def allows_teaching(self) -> bool:
        """Whether anybody may teach there."""
        return bool(self.teachers) or self.password_file is not None


# ---- mailboxes that are watched, and programs that teach


@dataclass(frozen=True)
class Watch:
    """Maildirs in which moving mail teaches."""

    maildir: Annotated[types.MaildirPattern, "Absolute path; * and ? match any name"]
    user: Annotated[
        types.MailUser,
        "Owner of all these Maildirs; empty: the text of the wildcards, or the file's owner",
    ] = ""
    folders: Annotated[
        tuple[tuple[str, types.FolderRole], ...],
        MAPPING,
        "Role of a folder, by a pattern of its name: a class, neutral, trash or ignored",
    ] = ()
    we_file: Annotated[
        types.Flag | None,
        "Tagged spam is filed into Junk; null: only if a listener delivers into this Maildir",
    ] = None
    lessons_per_day: Annotated[
        types.DailyLimit, "Maximum for each user within 24 hours; 0: no limit"
    ] = 1000  # what is moved beyond that teaches nothing
    answered_is_ham: Annotated[types.Flag, "An answered message in a ham folder is ham"] = False
    flagged_is_ham: Annotated[types.Flag, "A flagged message in a ham folder is ham"] = False


@dataclass(frozen=True)
class TeachSettings:
    """Where programs of this machine leave lessons.

    The spool is a directory (mode 1733, or 3733 to be read by its group). Root's and our own
    account may always name another user.
    """

    spool: Annotated[types.AbsolutePath, "Directory in which lessons are left"] = Path(LESSON_SPOOL)
    for_others: Annotated[tuple[types.Account, ...], "Accounts that may name another user"] = (
        "dovecot",
        "vmail",
    )
    lessons_per_day: Annotated[
        types.DailyLimit, "Maximum for each user within 24 hours; 0: no limit"
    ] = 1000  # by programs and by mail together; further ones are dropped


# ---- judging, and what is remembered of it


@dataclass(frozen=True)
class Scoring:
    """How messages are judged."""

    deadline: Annotated[
        types.Seconds, "Time limit for a message; then its scorer is killed, and on_error decides"
    ] = 8.0
    scorers: ConstantNumber = 1  # of each worker


@dataclass(frozen=True)
class HistorySettings:
    """What `explain ID`, `learn --id` and the page can look up. No bodies are kept."""

    age: Annotated[types.Days, "How long verdicts are kept: whole days"] = 30
    size: Annotated[types.Size, "Maximum size of the history"] = 512 << 20
    private: Annotated[
        types.Flag,
        "Keep no subjects, text, addresses or users: the page cannot show users their mail",
    ] = False


@dataclass(frozen=True)
class QuarantineSettings:
    """What becomes of mail that is held back."""

    keep: Annotated[types.Days | None, "How long held mail is kept: whole days; null: for ever"] = (
        None
    )


@dataclass(frozen=True)
class RejectSettings:
    """What becomes of mail that a rule rejects, and what its sender is told."""

    text: Annotated[
        types.RefusalText, "Behind the id of the message: a sentence, or the address of a page"
    ] = ""
    keep: Annotated[
        types.Days | None, "How long listeners hold a copy: whole days; null: there is none"
    ] = None


# ---- web page and HTTP API


@dataclass(frozen=True)
class WebProxy:
    """The reverse proxy in front of page and API; only its word about a client is believed.

    It must take the field `user_header` out of what clients send.
    """

    networks: Annotated[
        types.Networks, AT_LEAST_ONE, "Networks from which the reverse proxy connects"
    ]
    user_header: Annotated[types.HttpField, "Header field that names the user; empty: none"] = ""
    operators: Annotated[tuple[types.PersonName, ...], "Users who are operators"] = ()
    path: Annotated[
        types.UrlPath, "Path of page and API on the proxy's host, such as /spam; empty: the root"
    ] = ""


@dataclass(frozen=True)
class Web:
    """Where page and API are."""

    listen: Annotated[types.ListenAddress, "Where to listen: ADDRESS:PORT"]
    hosts: Annotated[
        tuple[types.Host, ...],
        "Host names of the page; none: those of loopback and the address itself",
    ] = ()
    tls: Annotated[
        CheckedCertificate | None,
        "HTTPS; needed if other machines than a reverse proxy can connect",
    ] = None
    proxy: Annotated[WebProxy | None, "The reverse proxy in front of page and API; null: none"] = (
        None
    )
    mail_from: Annotated[
        types.MailAddress, "Sender of our own mail, such as login links; empty: none is sent"
    ] = ""
    digest: Annotated[
        types.DigestPeriod, "How often users are told by mail what is held or unsure"
    ] = None
    digest_to: Annotated[
        types.MailAddress, "An operator who is told what is held for all; empty: nobody"
    ] = ""
    digest_hour: Annotated[types.HourOfDay, "When digests are sent, by local time"] = 6

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.listen}"

    @property
    def page_url(self) -> str:
        """The page's address, without a slash at the end; "" where it is not known."""
        host = self.hosts[0] if self.hosts else self.listen.host
        if self.proxy is not None:  # it is assumed to speak HTTPS on the usual port
            return f"https://{host}{self.proxy.path}" if self.hosts else ""
        return f"{'https' if self.tls else 'http'}://{HostPort(host, self.listen.port)}"


# ---- the whole


@dataclass(frozen=True)
class Settings:
    """The whole configuration."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    state: Annotated[
        types.AbsolutePath,
        "Directory of the filter: key, receipts, tables, history, quarantine",
    ]
    listeners: Annotated[tuple[Listener, ...], "Where mail comes in"]
    workers: Annotated[types.Processes, "Worker processes; 0: one for two cores"] = 0
    scoring: Annotated[Scoring, "How messages are judged"] = field(default_factory=Scoring)
    history: Annotated[HistorySettings, "What the history keeps"] = field(
        default_factory=HistorySettings
    )
    user: Annotated[
        types.RunAsUser,
        "Account of the daemon when started as root; empty: the owner of the state directory",
    ] = ""
    watch: Annotated[
        tuple[Annotated[Watch, Shorthand("maildir")], ...],
        "Maildirs in which moves teach: a path, or a mapping with details",
    ] = ()
    accounts: Annotated[
        tuple[Annotated[Account, Checked(check_account)], ...],
        "Mail that is reached by IMAP only; `spamguard account add` writes these",
    ] = ()
    watch_socket: Annotated[
        types.SocketPath | None,
        "Socket of the mailbox broker (`spamguard open-mailboxes`); null: none, the daemon "
        "opens mailboxes itself",
    ] = None
    teach: Annotated[
        TeachSettings | None,
        "Lessons by programs of this machine; null: none",
    ] = None
    personal: Annotated[
        types.Flag, "Weigh each recipient's own votes more in that recipient's mail"
    ] = False
    aliases: Annotated[
        tuple[tuple[types.Alias, types.MailUser], ...],
        MAPPING,
        "Addresses, each with the user whose mail it is; empty: nobody",
    ] = ()
    authserv_ids: Annotated[
        tuple[types.ServerName, ...], "Servers whose Authentication-Results are believed"
    ] = ()
    metrics: Annotated[
        types.ListenAddress | None,
        "Where monitors get metrics and health by HTTP: ADDRESS:PORT; null: nowhere",
    ] = None
    web: Annotated[
        Annotated[Web, Shorthand("listen")] | None,
        "Web page and HTTP API: an address, or a mapping with details; null: none",
    ] = None
    scanners: Annotated[tuple[Scanner, ...], "Doors at which other programs ask for verdicts"] = ()
    quarantine: Annotated[QuarantineSettings, "What becomes of held mail"] = field(
        default_factory=QuarantineSettings
    )
    reject: Annotated[RejectSettings, "What becomes of mail that is rejected"] = RejectSettings()
    shared: Annotated[
        Annotated[SharedSettings, Checked(check_driver)] | None,
        "Several machines learn as one, by a log in PostgreSQL; null: this machine alone",
    ] = None
    keep: Annotated[
        types.KeptLessons | None, 'Lessons kept: a number, or a time such as "2 years"; null: all'
    ] = None

    @property
    def accepts_lessons(self) -> bool:
        """Whether lessons come by a program, by mail or from the client of a scanner."""
        return (
            self.teach is not None
            or any(listener.teach for listener in self.listeners)
            or any(scanner.allows_teaching for scanner in self.scanners)
        )

    @property
    def doors(self) -> tuple[Listener | Scanner, ...]:
        """All that listens in the workers, in the order of their sockets."""
        return self.listeners + self.scanner_doors

    @property
    def scanner_doors(self) -> tuple[Scanner, ...]:
        """The `scanners`, and the door at which mail of `accounts` is judged."""
        own = Endpoint(Protocol.SPAMD, path=self.state / ACCOUNTS_DOOR)
        door = Scanner(listen=own, on_error=OnError.DEFER)
        return (*self.scanners, door) if self.accounts else self.scanners

    @property
    def believed_servers(self) -> tuple[str, ...]:
        """The `authserv_ids`, if any door believes them."""
        return self.authserv_ids if any(door.believes_results for door in self.doors) else ()
