"""What only local mailboxes must see to; what all mailboxes promise is in
tests/contract/test_mailboxes.py.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from spamguard.config.options import Watch
from spamguard.folders.maildir import LocalMailboxes
from tests.unit.folders.maildirs import maildir


def test_of_too_many_folders_only_so_many_are_looked_at_and_watched(tmp_path, monkeypatch, caplog):
    """Otherwise a user with a million folders takes all watches of the machine, and the memory of a
    process with more rights.
    """
    monkeypatch.setattr("spamguard.folders.maildir._MAX_DIRECTORIES", 5)
    box = maildir(tmp_path / "anna", *(f".f{number}" for number in range(4)))
    (box / "empty" / "deeper" / "deepest").mkdir(parents=True)
    with closing(LocalMailboxes([Watch(f"{tmp_path}/*")])) as local:
        (anna,) = local.find_mailboxes()
        before = len(local._watches._watched)
        assert [place.directory for place in local.list_folders(anna)] == [
            "",
            ".f0",
            ".f1",
            ".f2",
            ".f3",
        ]
        assert len(local._watches._watched) - before == 1 + 2 + 4 * 3 + 1
    assert "has more than 5 folders: the others are not looked at" in caplog.text


@pytest.mark.parametrize(
    ("name", "count", "much"),
    [
        ("a" * 98, 10, False),
        ("a" * 98, 11, True),
    ],
)
def test_a_folder_with_more_names_than_can_be_told_costs_itself_alone(
    tmp_path, monkeypatch, name, count, much
):
    """Otherwise one user's names take all memory of the broker."""
    monkeypatch.setattr("spamguard.folders.maildir._MAX_LISTING", 1000)
    box = maildir(tmp_path / "anna", ".Junk")
    for number in range(count):
        (box / ".Junk/cur" / f"{name}{number:02}").touch()
    with closing(LocalMailboxes([Watch(f"{tmp_path}/*")])) as local:
        (anna,) = local.find_mailboxes()
        inbox, junk = local.list_folders(anna)
        assert local.list_files(inbox) == {"new": [], "cur": []}
        if much:
            with pytest.raises(OSError, match="more file names than an answer can hold"):
                local.list_files(junk)
        else:
            assert len(local.list_files(junk)["cur"]) == count


def test_a_link_that_is_no_folder_is_told_unless_it_is_the_sieve_script_in_force(tmp_path, caplog):
    """Where the Maildir is the home directory, all users with own rules have such a link."""
    maildir(tmp_path / "anna", ".Lists.sieve")
    (tmp_path / "anna/.dovecot.sieve").symlink_to("sieve/rules.sieve")
    (tmp_path / "anna/.Old").symlink_to(tmp_path)
    with closing(LocalMailboxes([Watch(f"{tmp_path}/*")])) as local:
        (anna,) = local.find_mailboxes()
        assert [place.directory for place in local.list_folders(anna)] == ["", ".Lists.sieve"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"{tmp_path}/anna/.Old: is a symbolic link")
