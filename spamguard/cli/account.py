"""`account`: mail that is reached by IMAP only, at a provider or on a server of others.

`add` asks at most three questions, tries the login, looks which folders there are, and writes the
account into the configuration, as `setup` does; its password goes to a file of its own in the state
directory. `check` looks again, `list` tells how the accounts are, `remove` takes one out, and
`login` makes a token where a provider takes no passwords.

Must never print a password, and never change anything on a server.
"""

from __future__ import annotations

import getpass
import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard.cli import arguments, common, mail_servers, status
from spamguard.cli.arguments import argument, command, group
from spamguard.cli.setup import ACCOUNT as SERVICE_ACCOUNT
from spamguard.cli.setup import check_config, edit_yaml, find_account
from spamguard.config.accounts import (
    ACCOUNT_NAME,
    Account,
    AccountTls,
    Mode,
    OAuth,
    find_preset,
    providers,
)
from spamguard.config.load import parse_yaml
from spamguard.errors import UsageError
from spamguard.log import printable
from spamguard.sources import SourceMessage
from spamguard.storage import as_directory_owner, replace_private

if TYPE_CHECKING:
    from spamguard.imap.connection import Connection
    from spamguard.imap.folders import AccountFolder

_SECRETS = "secrets"
"""In the state directory: a file for the password, or the token, of each account."""

_NAME = argument("name", "as `account list` has it", "NAME")

group(
    "account",
    """\
Judge mail that is reached by IMAP only. spamguard logs in as a mail program does, judges what comes
into INBOX, and learns from mail that is moved.

A new account is in mode `look`: nothing is written on the server, and the page shows the verdicts.
With `mode: move` in the configuration spam is moved into Junk, with `mode: flag` it is marked. The
daemon takes up a changed configuration when it is reloaded.

Exit status of `add` and `check`: 1 when something failed.""",
    example="""\
  spamguard account add anna@example.org
  spamguard account add anna@example.org --config spamguard.yaml
  spamguard account check
  spamguard account list""",
)


# ---- add


@command(
    "account add",
    "ask for what is needed, try it, and write it into the configuration",
    argument("address", "the mail address", "ADDRESS", nargs="?"),
    argument("--server", "the IMAP server (default: by the address)", "HOST"),
    argument("--port", "default: 993 with tls, 143 otherwise", "PORT", type=int),
    argument("--tls", "starttls, or none on this machine", choices=[*map(str, AccountTls)]),
    argument("--login", "the name to log in with (default: the address)", "NAME"),
    argument("--password-command", "prints the password: none is asked", "COMMAND"),
    argument("--client-id", "of one's own application, for a token", "ID"),
)
def add(options: Namespace) -> int:
    from spamguard.doctor.accounts import check_account

    path = _config_file(options)
    text, values, state = _read_file(options, path)
    entries = values.get("accounts") or []
    entry = _ask_entry(options, state)
    if any(each.get("name") == entry["name"] for each in entries):
        raise UsageError(f"there is an account {entry['name']}: `account remove` it first")
    secret = state / _SECRETS / entry["name"]
    _make_directory(state, str(values.get("user") or ""))
    is_good = False
    try:
        if "password_file" in entry:
            password = _ask_password(entry)
            with as_directory_owner(state):
                replace_private(secret, [f"{password}\n".encode()])
        new = edit_yaml(text, values | {"accounts": [*entries, entry]})
        account = check_config(options, path, new).accounts[-1]
        if account.oauth is not None:
            _make_token(account, account.oauth)
        login, *others = check_account(account)
        is_good = login.outcome != "failed"
        common.print_steps([login, *others])
    finally:
        if not is_good:
            _forget(secret, state)
    if not is_good:
        common.fail("the account was not added")
        return 1
    _write(path, new)
    _show_next_steps(path, state, entry["name"])
    return 0


def _config_file(options: Namespace) -> Path:
    path: Path = (options.config or common.SERVICE_CONFIG).absolute()
    if options.config is None and os.geteuid() != 0:
        raise UsageError("say which configuration, as in --config spamguard.yaml; it may be new")
    return path


def _read_file(options: Namespace, path: Path) -> tuple[str, dict[str, Any], Path]:
    """The configuration's text, or that of a new one, its values, and the filter's directory."""
    text = mail_servers.read_text(path)
    options.config = path if text is not None else None
    state = common.state_directory(options).absolute()
    if text is not None:
        return text, dict(parse_yaml(text.encode("utf-8", "surrogateescape")).value or {}), state
    values = {"state": str(state)}
    if os.geteuid() == 0 and options.state is None and path == common.SERVICE_CONFIG:
        state = common.SERVICE_STATE
        values = {"state": str(state), "user": SERVICE_ACCOUNT}
    return "# Written by `spamguard account`.\n", values | {"web": "127.0.0.1:10088"}, state


def _write(path: Path, text: str) -> None:
    os.umask(0o022)  # the daemon's user must be able to read it
    path.parent.mkdir(parents=True, exist_ok=True)
    mail_servers.write_text(path, text)


def _ask_entry(options: Namespace, state: Path) -> dict[str, Any]:
    """The entry of the configuration; it says where the secret will be."""
    if options.address is None and not sys.stdin.isatty():
        options.wrong_usage("the following arguments are required: ADDRESS")
    address = options.address or _answer("Mail address: ")
    server = options.server or providers()[find_preset(address)].server
    if not ACCOUNT_NAME.fullmatch(address) or not (server or "@" in address):
        raise UsageError(f"{address!r} is no mail address such as anna@example.org")
    if not server:
        server = f"imap.{address.rpartition('@')[2]}"
        if sys.stdin.isatty():
            server = _answer(f"IMAP server [{server}]: ") or server
    preset, file = find_preset(address, server), str(state / _SECRETS / address)
    entry = {"name": address, "server": server, "user": options.login or address}
    entry |= {"port": options.port, "tls": options.tls, "preset": preset, "mode": str(Mode.LOOK)}
    if options.client_id is not None:
        entry["oauth"] = {"client_id": options.client_id, "token_file": file}
    elif not providers()[preset].takes_passwords:
        raise UsageError(providers()[preset].refusal)
    else:
        is_told = options.password_command is not None
        entry["password_command" if is_told else "password_file"] = options.password_command or file
    return {key: value for key, value in entry.items() if value not in (None, "other")}


def _answer(title: str, ask: Callable[[str], str] = input) -> str:
    try:
        return ask(title).strip()
    except EOFError:
        raise UsageError("no answer came, and nothing was changed") from None


def _ask_password(entry: Mapping[str, Any]) -> str:
    if sys.stdin.isatty():
        if preset := entry.get("preset"):
            print(f"{providers()[preset].refusal}.")
        title = f"Password of {entry['user']} at {entry['server']}: "
        password = _answer(title, getpass.getpass)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError("the password is empty: without a terminal it is the first line of input")
    return password


def _make_directory(state: Path, user: str) -> None:
    """Make the directory for secrets, and that of the filter. user: whose that is, if it is new."""
    if not state.exists():
        account = find_account(user) if user and os.geteuid() == 0 else None
        state.mkdir(mode=0o700, parents=True)
        if account is not None:
            os.chown(state, account.pw_uid, account.pw_gid)
    with as_directory_owner(state):
        (state / _SECRETS).mkdir(mode=0o700, exist_ok=True)


def _forget(secret: Path, state: Path) -> None:
    with as_directory_owner(state):
        secret.unlink(missing_ok=True)


def _show_next_steps(path: Path, state: Path, name: str) -> None:
    from spamguard.daemon.status import ask_daemon

    print(f"\nwrote {path}: {name}, mode look. Next:")
    print(f"  spamguard account teach {name} --config {path}    (from what is filed there)")
    if daemon := ask_daemon(state):
        print(f"  kill -HUP {daemon['pid']}, or systemctl reload spamguard")
    elif path == common.SERVICE_CONFIG:
        print("  systemctl enable --now spamguard")
    else:
        print(f"  spamguard run --config {path}")


# ---- check, list


@command(
    "account check",
    "log in and look; nothing is changed",
    argument("name", "only this one", "NAME", nargs="?"),
    arguments.JSON,
)
def check(options: Namespace) -> int:
    from spamguard.doctor.accounts import check_account, check_promotion

    accounts = _accounts(options, options.name)
    steps = (chain(check_account(each), check_promotion(each, options.state)) for each in accounts)
    failed = common.print_steps(chain.from_iterable(steps), as_json=options.json)
    return 1 if failed else 0


@command("account list", "the accounts, and what the running daemon says of them", arguments.JSON)
def list_accounts(options: Namespace) -> int:
    from spamguard.daemon.status import ask_daemon

    accounts = _accounts(options)
    daemon = ask_daemon(options.state)
    rows = status.account_values(options.state, daemon)
    why = "not looked at yet" if daemon else "no daemon runs"
    for account in accounts:
        unknown = {"mode": str(account.mode), "text": f"{account.mode}, {why}"}
        row = rows.get(account.name, unknown)
        place = f"{account.server}:{account.usual_port}"
        values = {"name": account.name, "server": place, "user": account.user, **row}
        common.print_answer(options, printable(f"{account.name}: {place}, {row['text']}"), values)
    return 0


def _accounts(options: Namespace, name: str | None = None) -> Sequence[Account]:
    """All accounts of the configuration, or the one of this name; UsageError: there is none."""
    options.config = path = _config_file(options)
    accounts = common.load_config(options).accounts
    found = [account for account in accounts if name in (None, account.name)]
    if found:
        return found
    known = f": it has {', '.join(account.name for account in accounts)}" if accounts else ""
    raise UsageError(f"{path} has no account{f' {name}' if name else ''}{known}")


# ---- teach

_MAX_TAUGHT = 1000  # of each class


@command(
    "account teach",
    "teach what was filed there before: the newest 1,000 of each class, of ham what was read",
    _NAME,
    arguments.DRY_RUN,
)
def teach(options: Namespace) -> int:
    from spamguard.cli.teach import print_lessons, taught_text, teach_filed
    from spamguard.imap.connection import connect
    from spamguard.imap.status import AccountStatus, read_status

    (account,) = _accounts(options, options.name)
    if read_status(options.state).get(account.name, AccountStatus()).moved:
        raise UsageError(f"{account.name}: spamguard has moved mail there, which must not teach")
    with closing(connect(account)) as connection:
        filed = _find_filed(account, connection)
        counts = Counter[str]()
        for folder, uids in filed:
            counts[folder.role.label] += len(uids)
        outcome = (taught_text(counts), 0, 0)
        if not options.dry_run:
            messages = common.progress(_fetch(connection, filed), counts.total())
            with common.open_filter(options) as spam_filter:
                outcome = teach_filed(spam_filter, account.name, counts, messages)
                spam_filter.settle_if_due()
    print_lessons(options, account.name, outcome)
    return 0


def _find_filed(account: Account, connection: Connection) -> list[tuple[AccountFolder, list[int]]]:
    """The folders of classes, each with UIDs, newest first; ham comes last, and wins."""
    from spamguard.folders.roles import HAM_ROLE, FolderKind
    from spamguard.imap.folders import account_folders

    found = account_folders(account, connection.list_folders())
    folders = [folder for folder in found if folder.role.kind is FolderKind.CLASS]
    left, filed = dict.fromkeys((folder.role.label for folder in folders), _MAX_TAUGHT), []
    for folder in sorted(folders, key=lambda each: each.role == HAM_ROLE):
        connection.select(folder.raw)
        uids = connection.search("SEEN UNDELETED" if folder.role == HAM_ROLE else "UNDELETED")
        filed.append((folder, uids[::-1][: left[folder.role.label]]))
        left[folder.role.label] -= len(filed[-1][1])
    return filed


def _fetch(
    connection: Connection, filed: Iterable[tuple[AccountFolder, list[int]]]
) -> Iterator[SourceMessage]:
    for folder, uids in filed:
        connection.select(folder.raw)
        for uid in uids:
            if body := connection.fetch_message(uid):
                raw = b"".join(body.pieces())
                yield SourceMessage(f"{folder.raw} {uid}", raw, folder.role.label)


# ---- remove, login


@command("account remove", "take an account out, with the password that `add` kept", _NAME)
def remove(options: Namespace) -> int:
    path = _config_file(options)
    text, values, state = _read_file(options, path)
    entries = values.get("accounts") or []
    gone = [each for each in entries if each.get("name") == options.name]
    if not gone:
        raise UsageError(f"{path} has no account {options.name}")
    others = [each for each in entries if each not in gone]
    _write(path, edit_yaml(text, values | {"accounts": others or None}))
    if state.exists() and Path(options.name).name == options.name:
        _forget(state / _SECRETS / options.name, state)
    print(f"{options.name} is out of {path}; what was learnt from it stays")
    return 0


@command("account login", "make a new token, where the provider takes no passwords", _NAME)
def login(options: Namespace) -> int:
    (account,) = _accounts(options, options.name)
    if account.oauth is None:
        raise UsageError(f"{account.name} has a password: put the new one into its file")
    _make_token(account, account.oauth)
    print(f"the token is in {account.oauth.token_file}")
    return 0


def _make_token(account: Account, oauth: OAuth) -> None:
    from spamguard.config.oauth import device_login

    with as_directory_owner(oauth.token_file.parent):
        device_login(
            account, oauth, lambda page, code: common.say(f"open {page} and type in {code}")
        )
