"""What folders are for: the configuration first, then Dovecot, then the usual names."""

from __future__ import annotations

import pytest

from spamguard.folders.roles import (
    HAM_ROLE,
    IGNORED_ROLE,
    SPAM_ROLE,
    TRASH_ROLE,
    Role,
    find_role,
)


@pytest.mark.parametrize(
    "name", ["Archive", "Archives", "Archiv", "Archivio", "Архив", "アーカイブ"]
)
def test_archive(name: str) -> None:
    assert find_role((name,)) == find_role((name, "2024", "May")) == HAM_ROLE


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("\\Junk", SPAM_ROLE),
        ("\\Trash", TRASH_ROLE),
        ("\\Archive", HAM_ROLE),
        ("\\Sent", IGNORED_ROLE),
        ("\\Drafts", IGNORED_ROLE),
        ("\\All", IGNORED_ROLE),
        ("\\Flagged", IGNORED_ROLE),
        ("\\Own \\junk", SPAM_ROLE),
        ("\\Own", SPAM_ROLE),
    ],
)
def test_special_uses(use: str, expected: Role) -> None:
    assert find_role(("Spam",), {}, {("Spam",): use}) == expected
