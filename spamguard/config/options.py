"""The options: each one once, with its type, its default and one line about it.

The settings of the daemon are these dataclasses, and pydantic checks a file by them. A field's name
is its key in the file; its annotation carries the check. config/spamguard.yaml explains each option
to people and shows these defaults.

Durations are seconds, sizes bytes. Every process imports this, so it must not load pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass
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

    to: types.NextHopEndpoint
    tls: Tls = Tls.OPPORTUNISTIC
    connect: ConstantSeconds = 10.0
    command: ConstantSeconds = 300.0  # for each reply: RFC 5321, section 4.5.3.2
    data: ConstantSeconds = 1800.0  # one attempt, so it waits for longer than clients do
    idle: ConstantSeconds = 30.0  # how long an open session waits for the next message
    sessions: ConstantNumber = 50  # that are idle, in each worker


@dataclass(frozen=True)
class Rule:
    """For messages with this verdict, from this probability of being unwanted on."""

    when: types.Label  # A class, or unsure; spam means every unwanted class
    # what to do, where that door can; defer and reject only before the queue
    action: Action
    from_probability: types.Probability = 0.0
    to: types.MailAddress = ""
    # text before the subject; breaks DKIM signatures
    subject_prefix: types.SubjectPrefix = ""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a door does about a verdict: the first rule that fits, tagging otherwise."""

    rules: tuple[Rule, ...] = ()  # what to do beyond tagging; the first rule that fits counts
    spam_threshold: types.SpamThreshold = 0.95
    # show the exact probability to recipients and to clients of a scanner
    tell_probability: types.Flag = False
    on_error: OnError = OnError.PASS


@dataclass(frozen=True)
class ScannerLimits:
    """What the clients of one scanner may use, in each worker process."""

    message_size: types.Size = 64 << 20
    connections: types.Count = 500
    # maximum of connections of an IPv4 address or IPv6 /64 network
    connections_per_client: types.Count = 250
    size_in_flight: ConstantNumber = 1 << 30  # of all messages being received, judged or passed on
    command_timeout: ConstantSeconds = 300.0  # for the next request or command
    data_timeout: ConstantSeconds = 60.0  # between two pieces of a message
    message_timeout: ConstantSeconds = 600.0


@dataclass(frozen=True)
class DoorLimits(ScannerLimits):
    """What one listener's clients may use, in each worker process; SIZE says `message_size`."""

    recipients: types.Count = 5000
    header_size: ConstantNumber = 1 << 20
    idle_commands: ConstantNumber = 100  # NOOP … since the last message; wrong ones count more
    data_timeout: ConstantSeconds = 180.0
    message_timeout: ConstantSeconds = 1800.0


@dataclass(frozen=True)
class Certificate:
    """PEM files for TLS at a door."""

    certificate: types.ReadableFile
    key: types.ReadableFile


CheckedCertificate = Annotated[
    Certificate, Checked(lambda pem: types.check_key_pair(pem.certificate, pem.key))
]


@dataclass(frozen=True)
class TeachByMail:
    """Addresses to which people forward mail, as attachments, to say what it is."""

    addresses: Annotated[
        tuple[tuple[types.TeachingAddress, types.ClassName], ...], MAPPING, AT_LEAST_ONE
    ]
    senders: Annotated[tuple[types.SenderPattern, ...], AT_LEAST_ONE]
    clients: types.Networks = LOOPBACK_NETWORKS
    # the user of the lesson: the sender's address, or its local-part
    user: TeachingUser = TeachingUser.ADDRESS


@dataclass(frozen=True)
class Listener(Policy):
    """One door for mail, and where its mail goes."""

    listen: types.ListenerEndpoint
    position: Position
    next_hop: Annotated[Hop, Shorthand("to")]
    limits: DoorLimits = DoorLimits()
    # bare CR, bare LF and NUL serve to smuggle mail
    odd_bytes: OddBytes = OddBytes.AUTO
    trusted: types.Networks = LOOPBACK_NETWORKS  # networks whose XFORWARD and XCLIENT are trusted
    clients: types.Networks = LOOPBACK_NETWORKS
    tls: CheckedCertificate | None = None
    # name in the greeting, EHLO and Received; empty: this machine's name
    hostname: types.HostName = ""
    teach: TeachByMail | None = None
    # the mail server removes Authentication-Results that came with the message
    strips_authentication_results: types.Flag = False

    @property
    def believes_results(self) -> bool:
        """Whether servers of `authserv_ids` are believed here: they have had the mail before."""
        is_late = self.position is Position.AFTER_QUEUE or self.listen.protocol is Protocol.LMTP
        return is_late or self.strips_authentication_results


# ---- scanners: other programs ask for verdicts, and hand the mail on themselves


@dataclass(frozen=True)
class Scanner(Policy):
    """A door at which programs ask as they ask rspamd, SpamAssassin or a milter."""

    listen: types.ScannerEndpoint
    limits: ScannerLimits = ScannerLimits()
    clients: types.Networks = LOOPBACK_NETWORKS
    # networks that may name the recipient's user and the original client
    trusted: types.Networks = LOOPBACK_NETWORKS
    teachers: types.Networks = ()
    # file whose first line is a password for teaching; None: none
    password_file: types.SecretFile | None = None
    # the mail server removes Authentication-Results that came with the message
    strips_authentication_results: types.Flag = False

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

    maildir: types.MaildirPattern  # absolute path; * and ? match any name
    # owner of all these Maildirs; empty: the text of the wildcards, or the file's owner
    user: types.MailUser = ""
    # role of a folder, by a pattern of its name: a class, neutral, trash or ignored
    folders: Annotated[tuple[tuple[str, types.FolderRole], ...], MAPPING] = ()
    # tagged spam is filed into Junk; None: only if a listener delivers into this Maildir
    we_file: types.Flag | None = None
    lessons_per_day: types.DailyLimit = 1000  # maximum for each user within 24 hours; 0: no limit
    answered_is_ham: types.Flag = False  # an answered message in a ham folder is ham
    flagged_is_ham: types.Flag = False  # A flagged message in a ham folder is ham


@dataclass(frozen=True)
class TeachSettings:
    """Where programs of this machine leave lessons.

    The spool is a directory (mode 1733, or 3733 to be read by its group). Root's and our own
    account may always name another user.
    """

    spool: types.AbsolutePath = Path(LESSON_SPOOL)
    for_others: tuple[types.Account, ...] = ("dovecot", "vmail")
    lessons_per_day: types.DailyLimit = 1000  # maximum for each user within 24 hours; 0: no limit


# ---- judging, and what is remembered of it


@dataclass(frozen=True)
class Scoring:
    """How messages are judged."""

    # time limit for a message; then its scorer is killed, and on_error decides
    deadline: types.Seconds = 8.0
    scorers: ConstantNumber = 1  # of each worker


@dataclass(frozen=True)
class HistorySettings:
    """What `explain ID`, `learn ID` and the page can look up. No bodies are kept."""

    age: types.Days = 30
    size: types.Size = 512 << 20
    # keep no subjects, text, addresses or users: the page cannot show users their mail
    private: types.Flag = False


@dataclass(frozen=True)
class QuarantineSettings:
    """What becomes of mail that is held back."""

    keep: types.Days | None = None


@dataclass(frozen=True)
class RejectSettings:
    """What becomes of mail that a rule rejects, and what its sender is told."""

    # behind the id of the message: a sentence, or the address of a page
    text: types.RefusalText = ""
    # how long listeners hold a copy: whole days; None: there is none
    keep: types.Days | None = None


# ---- web page and HTTP API


@dataclass(frozen=True)
class WebProxy:
    """The reverse proxy in front of page and API; only its word about a client is believed.

    It must take the field `user_header` out of what clients send.
    """

    networks: Annotated[types.Networks, AT_LEAST_ONE]
    user_header: types.HttpField = ""  # header field that names the user; empty: none
    operators: tuple[types.PersonName, ...] = ()
    # path of page and API on the proxy's host, such as /spam; empty: the root
    path: types.UrlPath = ""


@dataclass(frozen=True)
class Web:
    """Where page and API are."""

    listen: types.ListenAddress
    # host names of the page; none: those of loopback and the address itself
    hosts: tuple[types.Host, ...] = ()
    # HTTPS; needed if other machines than a reverse proxy can connect
    tls: CheckedCertificate | None = None
    proxy: WebProxy | None = None
    # sender of our own mail, such as login links; empty: none is sent
    mail_from: types.MailAddress = ""
    digest: DigestPeriod = DigestPeriod.NONE
    digest_to: types.MailAddress = ""  # an operator who is told what is held for all; empty: nobody
    digest_hour: types.HourOfDay = 6

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

    state: types.AbsolutePath
    listeners: tuple[Listener, ...] = ()
    workers: types.Processes = 0  # worker processes; 0: one for two cores
    scoring: Scoring = Scoring()
    history: HistorySettings = HistorySettings()
    # account of the daemon when started as root; empty: the owner of the state directory
    user: types.RunAsUser = ""
    watch: tuple[Annotated[Watch, Shorthand("maildir")], ...] = ()
    # mail that is reached by IMAP only; `spamguard account add` writes these
    accounts: tuple[Annotated[Account, Checked(check_account)], ...] = ()
    # of the mailbox broker (`spamguard open-mailboxes`); None: the daemon opens mailboxes itself
    watch_socket: types.AbsolutePath | None = None
    teach: TeachSettings | None = None
    personal: types.Flag = False  # weigh each recipient's own votes more in that recipient's mail
    # addresses, each with the user whose mail it is; empty: nobody
    aliases: Annotated[tuple[tuple[types.Alias, types.MailUser], ...], MAPPING] = ()
    authserv_ids: tuple[types.ServerName, ...] = ()
    metrics: types.ListenAddress | None = None
    web: Annotated[Web, Shorthand("listen")] | None = None
    scanners: tuple[Scanner, ...] = ()
    quarantine: QuarantineSettings = QuarantineSettings()
    reject: RejectSettings = RejectSettings()
    shared: Annotated[SharedSettings, Checked(check_driver)] | None = None
    keep: types.KeptLessons | None = None

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
