"""Lessons in the spool: whose they are, by the account that owns the file."""

from __future__ import annotations

import os
import pwd
from types import SimpleNamespace

from spamguard.servers.teach import TrainingAccounts

ME = pwd.getpwuid(os.getuid()).pw_name


class Nobody(TrainingAccounts):
    """As if we were an account that speaks for itself only."""

    def is_trusted(self, account: int) -> bool:
        return False


def test_an_unlisted_account_cannot_name_another_user_and_is_warned_about_once(caplog):
    """Where all mail belongs to one account and for_others does not name it, all people were one,
    without a word.
    """
    accounts = Nobody(())
    assert [accounts.resolve_user(os.getuid(), name) for name in ("ben", "carl")] == [ME, ME]
    (warning,) = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert "'ben'" in warning
    assert "for_others" in warning


def test_accounts_that_may_name_another_user():
    nobody = pwd.getpwnam("nobody").pw_uid
    assert TrainingAccounts(["nobody", "no-such-account"]).resolve_user(nobody, "anna") == "anna"
    assert TrainingAccounts(["nobody"]).resolve_user(nobody, "") == "nobody"
    assert TrainingAccounts([]).resolve_user(nobody, "anna") == "nobody"
    assert TrainingAccounts([]).resolve_user(0, "anna") == "anna"
    assert TrainingAccounts([]).resolve_user(os.getuid(), "anna") == "anna"
    assert TrainingAccounts([]).resolve_user(4_000_000, "anna") == "#4000000"


def test_an_account_whose_name_has_no_place_in_a_lesson_goes_by_its_number(monkeypatch):
    """The lesson was accepted, and dropped as none when it was to be learnt."""
    monkeypatch.setattr(pwd, "getpwuid", lambda account: SimpleNamespace(pw_name="DOMAIN\\anna\tb"))
    assert TrainingAccounts(()).resolve_user(os.getuid(), "") == f"#{os.getuid()}"
