"""The options: each one once, with its type, its default and one line about it.

The settings of the daemon are these dataclasses. A field's name is its key in the configuration
file; its annotation carries the check and the line that editors show (`spamguard check --schema`);
`schema` makes pydantic's models from them. config/spamguard.yaml explains each option to people and
shows these defaults.

Durations are seconds, sizes bytes. Every process imports this module, so it must never import
pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from spamguard.config import types
from spamguard.config.types import AT_LEAST_ONE, Inline, Shorthand
from spamguard.config.values import (
    Action,
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

__all__ = [
    "FORGED_FIELDS", "LOOPBACK_NETWORKS", "Action", "Certificate", "DoorLimits", "Endpoint",
    "HamEvidence", "HistorySettings", "Hop", "HostPort", "Listener", "OddBytes", "OnError",
    "Policy", "Position", "Protocol", "Rule", "Scanner", "ScannerLimits", "Scoring", "Settings",
    "TeachByMail", "TeachSettings", "TeachingUser", "Tls", "Watch", "Web", "WebLimits",
    "WebProxy", "parse_endpoint", "parse_scanner",
]  # fmt: skip

LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
FORGED_FIELDS = (
    "X-Spam",
    "X-Spam-*",
    "X-Spamd-*",
    "X-Spamguard*",
    "X-Bogosity",
    "X-Rspamd-*",
    "X-Spambayes-*",
    "X-CRM114-*",
    "X-DSPAM-*",
)

# ---- listeners: mail comes in, is judged, and goes on


@dataclass(frozen=True, slots=True)
class Hop:
    """The next hop of a listener."""

    to: Annotated[
        types.NextHopEndpoint,
        "Where mail goes on: smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket "
        "or maildir:/path",
    ]
    tls: Annotated[
        types.Tls, "STARTTLS towards it; required: with a certificate that is checked"
    ] = Tls.OPPORTUNISTIC
    connect: Annotated[
        types.Seconds, "How long to wait for a connection; then the client is told to come again"
    ] = 10.0
    # RFC 5321, section 4.5.3.2
    command: Annotated[types.Seconds, "How long to wait for each answer"] = 300.0
    # one attempt, so it waits for longer than clients do
    data: Annotated[types.Seconds, "How long to wait for the answer to the whole message"] = 1800.0
    idle: Annotated[types.Seconds, "How long an open session is kept for the next message"] = 30.0
    sessions: Annotated[types.Count, "Open sessions kept at most, in each worker"] = 50


@dataclass(frozen=True, slots=True)
class Rule:
    """For messages with this verdict, from this probability of being unwanted on."""

    when: Annotated[types.Label, "A class; spam: every unwanted one; unsure"]
    action: Annotated[types.Action, "What is done; defer and reject only before the queue"]
    from_probability: Annotated[
        types.Probability, "Probability of being unwanted from which on the rule fits"
    ] = 0.0
    to: Annotated[types.MailAddress, "Whom redirect sends it to"] = ""
    subject_prefix: Annotated[
        types.SubjectPrefix, "Put before the subject; breaks DKIM signatures"
    ] = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do about a verdict: the first rule that fits, tagging otherwise.

    spam_threshold is N for "1 in N": spam is what is so probable that at most one good message in N
    is called spam, where enough mail was confirmed to know (`policy.MIN_CONFIRMED`); before that,
    and with 0, it is the fixed threshold.
    """

    rules: Annotated[tuple[Rule, ...], "What is done beyond tagging: the first that fits"] = ()
    spam_threshold: Annotated[
        types.SpamThreshold,
        "From when on a message is called spam: fixed, or at most one good message in so many, "
        "as 1 in 1000",
    ] = 0
    tell_probability: Annotated[
        types.Flag, "Whether recipients, or clients of a scanner, see the exact probability"
    ] = False
    forged: Annotated[
        tuple[types.HeaderField, ...],
        "Verdict fields removed from what comes in; * at the end for anything",
    ] = FORGED_FIELDS
    on_error: Annotated[
        types.OnError, "A message that cannot be judged: pass it on unscored, or defer"
    ] = OnError.PASS


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What one listener's clients may use, in each worker process."""

    message_size: Annotated[types.Size, "Of one message; announced as SIZE"] = 64 << 20
    header_size: Annotated[types.Size, "Of the header of one message"] = 1 << 20
    recipients: Annotated[types.Count, "Of one message"] = 5000
    connections: Annotated[types.Count, "At once"] = 500
    connections_per_client: Annotated[
        types.Count, "At once, of one address; of IPv6, of one /64"
    ] = 250
    idle_commands: Annotated[types.Count, "NOOP, RSET, VRFY … since the last message"] = 100
    wrong_commands: Annotated[types.Count, "Refused or not understood, since the last message"] = 20
    size_in_flight: Annotated[types.Size, "Of all messages being received or handed on"] = 1 << 30
    command_timeout: Annotated[types.Seconds, "For the next command"] = 300.0
    data_timeout: Annotated[types.Seconds, "Between two pieces of a message"] = 180.0
    message_timeout: Annotated[types.Seconds, "For a whole message, however steadily it drips"] = (
        1800.0
    )


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files for TLS at a door."""

    certificate: Annotated[types.ReadableFile, "PEM file with the certificate and those above it"]
    key: Annotated[types.ReadableFile, "PEM file with its private key"]

    def check(self) -> None:
        """ValueError where the two do not belong together."""
        types.check_key_pair(self.certificate, self.key)


@dataclass(frozen=True, slots=True)
class TeachByMail:
    """Addresses to which people forward mail, as attachments, to say what it is.

    Mail to them that comes from another sender or network is handed on like all mail.
    """

    addresses: Annotated[
        tuple[tuple[types.TeachingAddress, types.ClassName], ...],
        AT_LEAST_ONE,
        "Addresses to forward mail to, each with the class it stands for",
    ]
    senders: Annotated[
        tuple[types.SenderPattern, ...],
        AT_LEAST_ONE,
        "Whose mail is taken so: addresses, or *@DOMAIN",
    ]
    clients: Annotated[tuple[types.Network, ...], "Networks it must come from"] = LOOPBACK_NETWORKS
    user: Annotated[
        types.TeachingUser, "Whose lesson it is: the sender's whole address, or its local-part"
    ] = TeachingUser.ADDRESS


@dataclass(frozen=True, slots=True)
class Listener:
    """One door for mail, and where its mail goes."""

    listen: Annotated[
        types.ListenerEndpoint,
        "Where mail comes in: smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT, with an IP address",
    ]
    position: Annotated[
        types.Position, "Where it stands in the mail's way; decides what may be refused"
    ]
    next_hop: Annotated[Hop, Shorthand("to"), "Where mail goes on: in one word, or with how"]
    policy: Annotated[Policy, Inline()] = field(default_factory=Policy)
    limits: Annotated[DoorLimits, "What clients may use, in each worker"] = field(
        default_factory=DoorLimits
    )
    odd_bytes: Annotated[
        types.OddBytes,
        "Messages with bare CR, bare LF or NUL, which smuggle; auto: normalise after the queue, "
        "refuse elsewhere",
    ] = None
    trusted: Annotated[
        tuple[types.Network, ...], "Networks whose XFORWARD and XCLIENT are believed"
    ] = LOOPBACK_NETWORKS
    clients: Annotated[tuple[types.Network, ...], "Networks that may send here at all"] = (
        LOOPBACK_NETWORKS
    )
    tls: Annotated[Certificate | None, "STARTTLS at this listener; null: not offered"] = None
    hostname: Annotated[
        types.HostName, "For the greeting, EHLO and Received; empty: this machine's"
    ] = ""
    teach: Annotated[
        TeachByMail | None, "Addresses to which people forward mail to say what it is"
    ] = None
    speed_adjust: Annotated[
        types.Flag, "Whether Postfix has smtpd_proxy_options=speed_adjust here; for checks only"
    ] = False


# ---- scanners: other programs ask for verdicts, and hand the mail on themselves


@dataclass(frozen=True, slots=True)
class ScannerLimits:
    """What the clients of one scanner may use, in each worker process."""

    message_size: Annotated[types.Size, "Of one message"] = 64 << 20
    connections: Annotated[types.Count, "At once"] = 500
    connections_per_client: Annotated[
        types.Count, "At once, of one address; of IPv6, of one /64"
    ] = 250
    size_in_flight: Annotated[types.Size, "Of all messages being received or judged"] = 1 << 30
    command_timeout: Annotated[types.Seconds, "For the next request or command"] = 300.0
    data_timeout: Annotated[types.Seconds, "Between two pieces of one"] = 60.0
    message_timeout: Annotated[types.Seconds, "For a whole one, however steadily it drips"] = 600.0


@dataclass(frozen=True, slots=True)
class Scanner:
    """A door at which programs ask as they ask rspamd, SpamAssassin or a milter."""

    listen: Annotated[
        types.ScannerEndpoint,
        "Where programs ask: rspamd://ADDRESS:PORT, spamd://ADDRESS:PORT, milter://ADDRESS:PORT "
        "or milter:/path/to/socket",
    ]
    policy: Annotated[Policy, Inline(without=("rules",))] = field(default_factory=Policy)
    limits: Annotated[ScannerLimits, "What clients may use, in each worker"] = field(
        default_factory=ScannerLimits
    )
    clients: Annotated[tuple[types.Network, ...], "Networks that may ask at all"] = (
        LOOPBACK_NETWORKS
    )
    trusted: Annotated[
        tuple[types.Network, ...], "Networks that are believed whose mail it is and whom it is from"
    ] = LOOPBACK_NETWORKS
    teachers: Annotated[tuple[types.Network, ...], "Networks that may teach"] = ()
    password_file: Annotated[
        types.SecretFile | None, "A file whose first line lets others teach too; null: nobody"
    ] = None
    reject_from: Annotated[
        types.Probability | None, "From when on clients are told to refuse a message; null: never"
    ] = None
    quarantine_from: Annotated[
        types.Probability | None, "From when on milters hold it back (Postfix: hold); null: never"
    ] = None
    greylist_from: Annotated[
        types.Probability | None, "From when on they are told to have it sent again; null: never"
    ] = None
    hostname: Annotated[
        types.HostName, "By which we go in header fields; empty: this machine's"
    ] = ""

    @property
    def allows_teaching(self) -> bool:
        """Whether anybody may teach there."""
        return bool(self.teachers) or self.password_file is not None


# ---- judging, and what is remembered of it


@dataclass(frozen=True, slots=True)
class Scoring:
    """How messages are judged."""

    deadline: Annotated[
        types.Seconds, "For one message; its process is killed then, and on_error decides"
    ] = 8.0
    scorers: Annotated[types.Count, "Processes that judge, for each worker"] = 1


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """What `explain ID`, `learn --id` and the page can look up. No bodies are kept."""

    age: Annotated[types.Days, "How long it is remembered what was judged: whole days"] = 30
    size: Annotated[types.Size, "How much of it is remembered at most"] = 512 << 20
    subjects: Annotated[
        types.Flag, "Whether subjects are remembered, and words that stood there"
    ] = True
    addresses: Annotated[
        types.Flag,
        "Whether addresses and users are remembered; without, people cannot be shown their mail",
    ] = True


# ---- learning: mailboxes that are watched, and programs that teach


@dataclass(frozen=True, slots=True)
class HamEvidence:
    """What else than a move says that a message in a ham folder is ham."""

    answered: Annotated[types.Flag, "Whether having been answered says that a message is ham"] = (
        False
    )
    flagged: Annotated[types.Flag, "Whether being flagged says so"] = False
    read_after: Annotated[
        types.Seconds | None, "How long after it was read and left where it is; null: never"
    ] = None


@dataclass(frozen=True, slots=True)
class Watch:
    """Maildirs in which moving mail teaches.

    A folder's role is that of the first pattern in `folders` that fits its name; then Dovecot's
    special use counts, then common names.
    """

    maildir: Annotated[types.MaildirPattern, "An absolute path; * and ? stand for any name"]
    user: Annotated[
        types.MailUser, "Whose they all are; empty: what the wildcards stand for, or the owner"
    ] = ""
    folders: Annotated[
        tuple[tuple[str, types.FolderRole], ...],
        "What moving into a folder says: pattern of its name to a class, neutral, trash or ignored",
    ] = ()
    we_file: Annotated[
        types.Flag | None,
        "Whether what we tag as spam is filed into Junk; null: if a listener delivers into just "
        "this Maildir",
    ] = None
    debounce: Annotated[types.Seconds, "From the first sign of a change to looking"] = 1.0
    rescan: Annotated[types.Seconds, "Between two looks at everything"] = 600.0
    lessons_per_day: Annotated[types.DailyLimit, "Of each user, within 24 hours; 0: no limit"] = (
        1000  # what is moved beyond that teaches nothing
    )
    ham_evidence: Annotated[HamEvidence, "What else says that a message is ham"] = field(
        default_factory=HamEvidence
    )
    spam_evidence: Annotated[
        tuple[types.Keyword, ...], "Keywords that say that a message is spam"
    ] = ()


@dataclass(frozen=True, slots=True)
class TeachSettings:
    """Where programs of this machine hand lessons over.

    The spool is a directory (mode 1733, or 3733 to be read by its group). Root's and our own
    account may always name another user.
    """

    socket: Annotated[types.SocketPath | None, "Where; null: teach.sock in the state directory"] = (
        None
    )
    mode: Annotated[types.FileMode, "Who may connect, in octal digits"] = 0o666
    spool: Annotated[
        types.AbsolutePath | None, "Where lessons are left while nobody listens; null: nowhere"
    ] = None
    for_others: Annotated[tuple[types.Account, ...], "Accounts that may name another user"] = (
        "dovecot",
        "vmail",
    )
    lessons_per_day: Annotated[types.DailyLimit, "Of each user, within 24 hours; 0: no limit"] = (
        1000  # by programs and by mail together; further ones are dropped
    )


# ---- web page and HTTP API


@dataclass(frozen=True, slots=True)
class WebProxy:
    """The reverse proxy in front of page and API; only its word about a client is believed.

    It must take the field `user_header` out of what clients send.
    """

    networks: Annotated[
        tuple[types.Network, ...], AT_LEAST_ONE, "From where the reverse proxy connects"
    ]
    user_header: Annotated[types.HttpField, "Field in which it names the person; empty: none"] = ""
    operators: Annotated[tuple[types.PersonName, ...], "Who of these people is an operator"] = ()
    path: Annotated[
        types.UrlPath, "Where on its host it has put us, as in /spam; empty: a host of our own"
    ] = ""


@dataclass(frozen=True, slots=True)
class WebLimits:
    """What the clients of page and API may use."""

    message_size: Annotated[types.Size, "Of a message that is handed over"] = 64 << 20
    requests_per_minute: Annotated[types.Count, "Of one person"] = 6000
    requests_per_minute_of_address: Annotated[types.Count, "Of one client"] = 6000


@dataclass(frozen=True, slots=True)
class Web:
    """Where page and API are."""

    listen: Annotated[types.ListenAddress, "Where: ADDRESS:PORT"]
    hosts: Annotated[
        tuple[types.Host, ...],
        "Names by which they are asked for; none: those of loopback and the address itself",
    ] = ()
    tls: Annotated[
        Certificate | None,
        "HTTPS; needed where others than this machine or a reverse proxy can connect",
    ] = None
    proxy: Annotated[WebProxy | None, "The reverse proxy in front of them; null: there is none"] = (
        None
    )
    limits: Annotated[WebLimits, "What clients may use"] = field(default_factory=WebLimits)

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.listen}"

    @property
    def page_url(self) -> str:
        """The page's address, without a slash at the end; "" where it is not known."""
        host = self.hosts[0] if self.hosts else self.listen.host
        host = f"[{host}]" if ":" in host else host
        if self.proxy is not None:  # it is assumed to speak HTTPS on the usual port
            return f"https://{host}{self.proxy.path}" if self.hosts else ""
        return f"{'https' if self.tls else 'http'}://{host}:{self.listen.port}"


# ---- the whole


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration."""

    state: Annotated[
        types.AbsolutePath,
        "Directory of the filter: key, receipts, tables, history, quarantine",
    ]
    listeners: Annotated[tuple[Listener, ...], "Where mail comes in"]
    workers: Annotated[types.Processes, "Processes that speak SMTP; 0: one for two cores"] = 0
    scoring: Annotated[Scoring, "How messages are judged"] = field(default_factory=Scoring)
    history: Annotated[HistorySettings, "What is remembered of what was judged"] = field(
        default_factory=HistorySettings
    )
    user: Annotated[
        types.RunAsUser,
        "Whom to run as when started as root; empty: the owner of the state directory",
    ] = ""
    watch: Annotated[
        tuple[Annotated[Watch, Shorthand("maildir")], ...],
        "Maildirs in which moving mail teaches: in one word, or with how",
    ] = ()
    watch_socket: Annotated[
        types.SocketPath | None,
        "Of the process that opens people's mailboxes for us (`spamguard open-mailboxes`); "
        "null: we do",
    ] = None
    teach: Annotated[
        TeachSettings | None,
        "A Unix socket on which programs of this machine hand lessons over; null: none",
    ] = None
    personal: Annotated[
        types.Flag, "Whether mail is judged for each recipient by what that person has said"
    ] = False
    aliases: Annotated[
        tuple[tuple[types.Alias, types.MailUser], ...],
        "Addresses, each with the user whose mail that is; empty: nobody's",
    ] = ()
    metrics: Annotated[
        types.ListenAddress | None, "Where monitors may ask by HTTP: ADDRESS:PORT; null: nowhere"
    ] = None
    web: Annotated[
        Annotated[Web, Shorthand("listen")] | None,
        "Web page and HTTP API: where alone, or with how; null: there are none",
    ] = None
    scanners: Annotated[tuple[Scanner, ...], "Where other programs ask for verdicts"] = ()

    @property
    def accepts_lessons(self) -> bool:
        """Whether lessons come by a socket, by mail or from the client of a scanner."""
        return (
            self.teach is not None
            or any(listener.teach for listener in self.listeners)
            or any(scanner.allows_teaching for scanner in self.scanners)
        )

    @property
    def doors(self) -> tuple[Listener | Scanner, ...]:
        """All that listens in the workers, in the order of their sockets."""
        return self.listeners + self.scanners
