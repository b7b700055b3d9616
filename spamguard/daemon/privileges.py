"""The user that a process runs as, and what it may do.

The daemon starts as root to open its ports, then becomes the owner of the state directory, or
`user`, for good (`drop_privileges`). The mailbox broker keeps one right of root's, to read
everything (CAP_DAC_READ_SEARCH, capabilities(7)), and loses all others (`become_reader`); systemd
does the same before it starts a service, so that this is for daemons started in other ways. Linux
only.

It is written by hand because python-prctl must be compiled, for two system calls that ctypes makes
as well.

Must be done after the ports are open and before the first byte from the network. While still root,
must never follow what others could have put into the state directory.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import pwd
import struct
import sys
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from spamguard.config.options import Certificate, Settings
from spamguard.errors import ConfigError, StartError, remedy
from spamguard.storage import KEY_FILE, LEDGER_FILE, SPOOL_DIRECTORY

_log = logging.getLogger("spamguard.daemon")

CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION = 0x20080522  # of the structures of capset(2): two words for each set
_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 8, 24, 38  # prctl(2)
_MAX_CAPABILITIES = 64
_OWNED_FILES = (KEY_FILE, LEDGER_FILE)
_INSTALL_REMEDY = (
    "install spamguard where every user gets to, as in /opt, and with a Python like that"
)


# ---- the mailbox broker


def become_reader(name: str) -> None:
    """As root, become a user who may read everything and has no other right of root's.

    Call this before any thread starts: capabilities belong to threads.

    Raises
    ------
    StartError
        There is no such user, or the kernel refuses.
    """
    if os.geteuid() != 0:
        return
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StartError(
            f"there is no user {name!r} to run as: create it, or name another with --user"
        ) from None
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for capability in range(_MAX_CAPABILITIES):
            if capability == CAP_DAC_READ_SEARCH:
                continue
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                break  # the kernel knows no more
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([user.pw_gid])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        # The effective and the permitted set; the inheritable one is empty.
        kept = 1 << CAP_DAC_READ_SEARCH
        header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
        data = ctypes.create_string_buffer(struct.pack("6I", kept, kept, 0, 0, 0, 0))
        if libc.capset(header, data) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    except OSError as error:
        raise StartError(f"cannot become {name} ({error.strerror})") from error


# ---- the daemon


def drop_privileges(settings: Settings) -> None:
    """Make the state directory if it is missing, become its owner, and make the spool directory.

    Raises
    ------
    StartError
        The state directory cannot be used so.
    ConfigError
        Files that root has read cannot be read by that user: every worker would end at once.
    """
    os.umask(0o022)  # the user must get through the directories above the state directory
    try:
        if os.getuid() == 0:
            account = check_account(settings)
            if account.pw_uid == 0:
                _log.warning(
                    "running as root, as %s belongs to root: "
                    "name a user with `user`, or give it to one with chown",
                    settings.state,
                )
            _make_state(settings.state, account)
            _check_owner(settings.state, account)  # somebody may just have made it
            _become_user(account)
            if unreadable := find_unreadable(required_files(settings)):
                raise ConfigError(*unreadable)
        else:
            _make_state(settings.state, None)
            _check_access(settings.state)
        os.umask(0o077)
        (settings.state / SPOOL_DIRECTORY).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        advice = remedy(error, "choose a state directory of that user")
        raise StartError(
            f"{settings.state}: cannot be used as {_user_name()} ({error.strerror}): {advice}"
        ) from error


def service_account(settings: Settings) -> pwd.struct_passwd:
    """Return the account that the daemon runs as when root starts it. StartError: there is none."""
    try:
        owner = settings.state.stat().st_uid if settings.state.exists() else 0
        return pwd.getpwnam(settings.user) if settings.user else pwd.getpwuid(owner)
    except KeyError:
        who = f"user {settings.user!r}" if settings.user else f"owner of {settings.state}"
        raise StartError(
            f"there is no {who} on this machine: create it, or name another with `user`"
        ) from None


def check_account(settings: Settings) -> pwd.struct_passwd:
    """Return that account, having checked that root could start the daemon so; changes nothing.

    Raises
    ------
    StartError
        It could not.
    """
    account = service_account(settings)
    if account.pw_uid == 0:
        _refuse_exposed(settings)
    _check_owner(settings.state, account)
    return account


def required_files(settings: Settings) -> list[Path]:
    """Return the files, besides the configuration itself, that the daemon must be able to read."""
    certificates: list[Certificate | None] = [listener.tls for listener in settings.listeners]
    certificates += [settings.web.tls] if settings.web else []
    files = [file for tls in certificates if tls for file in (tls.certificate, tls.key)]
    return files + [scanner.password_file for scanner in settings.scanners if scanner.password_file]


def find_unreadable(files: Iterable[Path]) -> list[str]:
    """Return a sentence for each file that the present user cannot read."""
    problems = []
    for path in files:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            problems.append(
                f"{path}: cannot be read by {_user_name()}, whom the daemon runs as "
                f"({error.strerror}): give that user the right to, there and in the directories "
                "above it"
            )
    return problems


def check_program() -> None:
    """Check that the present user can run this program once more, as for a worker.

    Raises
    ------
    StartError
        It cannot, as with one installed under /root.
    """
    for path, access, verb in (
        (Path(sys.executable), os.X_OK, "run"),
        (Path(__file__), os.R_OK, "read"),
    ):
        if not os.access(path, access):
            place = path if verb == "run" else path.parents[1]
            raise StartError(
                f"{place}: {_user_name()}, whom the daemon runs as, cannot {verb} it: "
                f"{_INSTALL_REMEDY}"
            )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _refuse_exposed(settings: Settings) -> None:
    """Raise StartError if other machines could reach a daemon that runs as root."""
    addresses = [
        (door.listen.host, str(door.listen)) for door in settings.doors if door.listen.path is None
    ]
    if settings.metrics:
        addresses.append((settings.metrics.host, f"metrics on {settings.metrics}"))
    if settings.web:
        addresses.append((settings.web.listen.host, f"page and API on {settings.web}"))
    for host, door in addresses:
        if not ip_address(host).is_loopback:
            raise StartError(
                f"will not run as root with {door} open to others: "
                f"name a user with `user`, or give {settings.state} to one with chown"
            )


def _make_state(state: Path, account: pwd.struct_passwd | None) -> None:
    try:
        state.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        state.mkdir(mode=0o700)
    except FileExistsError:
        return
    if account is not None:
        os.chown(state, account.pw_uid, account.pw_gid)


def _check_owner(state: Path, account: pwd.struct_passwd) -> None:
    """Raise StartError if the filter belongs to another user, or is not in a directory."""
    if state.exists() and not state.is_dir():
        raise StartError(f"{state}: is no directory: name another with `state`")
    for path in (state, *(state / name for name in _OWNED_FILES)):
        if os.path.lexists(path) and path.lstat().st_uid != account.pw_uid:
            name = account.pw_name
            raise StartError(
                f"{path} does not belong to {name}, whom the daemon runs as: "
                f"chown -R {name}: {state}"
            )


def _check_access(state: Path) -> None:
    """Raise PermissionError if a filter that is there may not be used.

    A read-only disk is no reason: mail passes all the same.
    """
    for path in (state, state / SPOOL_DIRECTORY, *(state / name for name in _OWNED_FILES)):
        if not os.path.lexists(path):
            continue
        access = os.R_OK
        if path.is_dir():
            access |= os.W_OK | os.X_OK
        elif path.name == LEDGER_FILE:
            access |= os.W_OK
        if not os.access(path, access) and not os.statvfs(state).f_flag & os.ST_RDONLY:
            raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}: {path.name}")


def _become_user(account: pwd.struct_passwd) -> None:
    """Drop everything of root's, for good (setresuid changes the saved id too)."""
    if account.pw_uid == 0:
        return
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    os.environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)
    _log.info("running as %s", account.pw_name)
