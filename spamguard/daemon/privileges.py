"""Whom the daemon runs as, and the state directory that belongs to them.

Must be done after the ports are open and before the first byte from the network; must never follow what others could put into
the state directory while it is still root.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import sys
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from spamguard.errors import ConfigError, StartError, remedy
from spamguard.files import KEY, LEDGER, SPOOL
from spamguard.settings import Certificate, Settings

_OURS = (KEY, LEDGER)
_ELSEWHERE = "install spamguard where every user gets to, as in /opt, and with a Python like that"
_log = logging.getLogger("spamguard.daemon")


def settle_in(settings: Settings) -> None:
    """Make the state directory if it is missing, become who owns it, and make room for spooled messages.

    StartError. ConfigError: files that root has read, and whoever we are now cannot, so that every worker would end at once.
    """
    os.umask(0o022)  # whoever it runs as must get through the directories above the state directory
    try:
        if os.getuid() == 0:
            account = check(settings)
            if account.pw_uid == 0:
                _log.warning(
                    "running as root, as %s belongs to root: name a user with `user`, or give it to one with chown", settings.state
                )
            _make(settings.state, account)
            _check_owner(settings.state, account)  # it may be there only since
            _become(account)
            if closed := unreadable(named_files(settings)):
                raise ConfigError(*closed)
        else:
            _make(settings.state, None)
            _check_rights(settings.state)
        os.umask(0o077)
        (settings.state / SPOOL).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        told = remedy(error, "choose a state directory of that user")
        raise StartError(f"{settings.state}: cannot be used as {_me()} ({error.strerror}): {told}") from error


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def check(settings: Settings) -> pwd.struct_passwd:
    """Whom the daemon runs as when root starts it. StartError: it would not start so. Changes nothing."""
    account = service_account(settings)
    if account.pw_uid == 0:
        _refuse_exposed(settings)
    _check_owner(settings.state, account)
    return account


def service_account(settings: Settings) -> pwd.struct_passwd:
    """Whom the daemon runs as when root starts it. StartError: there is no such user."""
    try:
        owner = settings.state.stat().st_uid if settings.state.exists() else 0
        return pwd.getpwnam(settings.user) if settings.user else pwd.getpwuid(owner)
    except KeyError:
        who = f"user {settings.user!r}" if settings.user else f"owner of {settings.state}"
        raise StartError(f"there is no {who} on this machine: create it, or name another with `user`") from None


def named_files(settings: Settings) -> list[Path]:
    """Files besides the configuration itself without which what it says cannot be done."""
    certificates: list[Certificate | None] = [one.tls for one in settings.listeners]
    certificates += [settings.web.tls] if settings.web else []
    found = [file for one in certificates if one is not None for file in (one.certificate, one.key)]
    return [*found, *(one.password_file for one in settings.scanners if one.password_file is not None)]


def unreadable(files: Iterable[Path]) -> list[str]:
    """Those that whoever we are now cannot read: a sentence for each."""
    return [told for told in map(_trouble, files) if told]


def _trouble(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        remedy = "give that user the right to, there and in the directories above it"
        return f"{path}: cannot be read by {_me()}, whom the daemon runs as ({error.strerror}): {remedy}"
    return ""


def _refuse_exposed(settings: Settings) -> None:
    """StartError where others than this machine could reach what runs as root."""
    places = [(one.endpoint.host, str(one.endpoint)) for one in settings.doors if one.endpoint.path is None]
    places += [(settings.metrics.host, f"metrics on {settings.metrics}")] if settings.metrics else []
    places += [(settings.web.place.host, f"page and API on {settings.web}")] if settings.web else []
    exposed = [told for host, told in places if not ip_address(host).is_loopback]
    if exposed:
        raise StartError(
            f"will not run as root with {exposed[0]} open to others: name a user with `user`, or give {settings.state} to one with chown"
        )


def check_program() -> None:
    """StartError where whoever we are now may not run this program once more, as one under /root: no worker would start."""
    if not os.access(sys.executable, os.X_OK):
        raise StartError(f"{sys.executable}: {_me()}, whom the daemon runs as, cannot run it: {_ELSEWHERE}")
    if not os.access(__file__, os.R_OK):
        raise StartError(f"{Path(__file__).parents[1]}: {_me()}, whom the daemon runs as, cannot read it: {_ELSEWHERE}")


def _make(state: Path, account: pwd.struct_passwd | None) -> None:
    try:
        state.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        state.mkdir(mode=0o700)
    except FileExistsError:
        return
    if account is not None:
        os.chown(state, account.pw_uid, account.pw_gid)


def _check_owner(state: Path, account: pwd.struct_passwd) -> None:
    """StartError when the filter belongs to somebody else, or has no directory: told now, not by the first message."""
    if state.exists() and not state.is_dir():
        raise StartError(f"{state}: is no directory: name another with `state`")
    for path in _existing([state, *(state / name for name in _OURS)]):
        if path.lstat().st_uid != account.pw_uid:
            name = account.pw_name
            raise StartError(f"{path} does not belong to {name}, whom the daemon runs as: chown -R {name}: {state}")


def _check_rights(state: Path) -> None:
    """PermissionError where a filter that is there may not be used; not where the disk is read-only: mail passes all the same."""
    for path in _existing([state, state / SPOOL, *(state / name for name in _OURS)]):
        wanted = os.R_OK | (os.W_OK | os.X_OK if path.is_dir() else os.W_OK if path.name == LEDGER else 0)
        if not os.access(path, wanted) and not os.statvfs(state).f_flag & os.ST_RDONLY:
            raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}: {path.name}")


def _existing(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if os.path.lexists(path)]


def _become(account: pwd.struct_passwd) -> None:
    """Drop everything of root's, for good (setresuid changes the saved id too)."""
    if account.pw_uid == 0:
        return
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    os.environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)
    _log.info("running as %s", account.pw_name)
