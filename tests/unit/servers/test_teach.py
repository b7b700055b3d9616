"""Lessons in the spool: whose they are, by the account that owns the file."""

from __future__ import annotations

import os
import pwd

from spamguard.servers.teach import TrainingAccounts


def test_accounts_that_may_name_another_user():
    nobody = pwd.getpwnam("nobody").pw_uid
    assert TrainingAccounts(["nobody", "no-such-account"]).resolve_user(nobody, "anna") == "anna"
    assert TrainingAccounts(["nobody"]).resolve_user(nobody, "") == "nobody"
    assert TrainingAccounts([]).resolve_user(nobody, "anna") == "nobody"
    assert TrainingAccounts([]).resolve_user(0, "anna") == "anna"
    assert TrainingAccounts([]).resolve_user(os.getuid(), "anna") == "anna"
    assert TrainingAccounts([]).resolve_user(4_000_000, "anna") == "#4000000"
