"""What folders are for: the configuration first, then Dovecot, then the usual names."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from spamguard.folders import roles
from spamguard.folders.roles import (
    HAM_ROLE,
    IGNORED_ROLE,
    NEUTRAL_ROLE,
    SPAM_ROLE,
    TRASH_ROLE,
    FolderKind,
    Role,
    find_role,
    parse_role,
)

NEWS = Role(FolderKind.CLASS, "newsletters")

JUNK_NAMES = """Junk; Spam; Bulk; Junk E-mail; junk e‑mail; Courrier indésirable
COURRIER INDÉSIRABLE; Courrier inde\u0301sirable; Pourriel
Correo no deseado; Spamverdacht; Posta indesiderata; Lixo Eletrónico
Skräppost; Ongewenste e-mail; Roskaposti; Søppelpost; Uønsket mail
Нежелательная почта; Спам; Niechciane; Wiadomości-śmieci
Nevyžádaná pošta; 垃圾邮件; 垃圾郵件; 迷惑メール; 스팸; דואר זבל; البريد غير الهام
Önemsiz; İstenmeyen; Levélszemét; Ανεπιθύμητα; Thư rác; อีเมลขยะ; Ｓｐａｍ"""


@pytest.mark.parametrize(
    "name", [name.strip() for name in JUNK_NAMES.replace("\n", ";").split(";")]
)
def test_junk_in_many_languages(name: str) -> None:
    assert find_role((name,)) == SPAM_ROLE
    assert find_role(("INBOX", name)) == SPAM_ROLE
    assert find_role(("Inbox", name, "2024")) == SPAM_ROLE
    assert find_role(("Lists", name)) == NEUTRAL_ROLE


@pytest.mark.parametrize(
    "name",
    [
        "Trash",
        "Deleted Items",
        "Papierkorb",
        "Corbeille",
        "Papelera",
        "Cestino",
        "Корзина",
        "ゴミ箱",
        "已删除",
    ],
)
def test_trash(name: str) -> None:
    assert find_role((name,)) == find_role((name, "old")) == TRASH_ROLE


@pytest.mark.parametrize(
    "name", ["Archive", "Archives", "Archiv", "Archivio", "Архив", "アーカイブ"]
)
def test_archive(name: str) -> None:
    assert find_role((name,)) == find_role((name, "2024", "May")) == HAM_ROLE


@pytest.mark.parametrize(
    "name",
    ["Sent", "Gesendet", "Drafts", "ENTWÜRFE", "Templates", "Отправленные", "草稿", "EXPUNGED"],
)
def test_what_people_write_themselves_is_ignored(name: str) -> None:
    assert (
        find_role((name,))
        == find_role((name, "Junk"))
        == find_role(("INBOX", name, "2024"))
        == IGNORED_ROLE
    )


@pytest.mark.parametrize("name", ["Lists", "Projects", "spammers", "sentimental", ""])
def test_everything_else_is_neutral(name: str) -> None:
    assert {find_role((name,)), find_role((name, "Junk"))} == {NEUTRAL_ROLE}


def test_the_inbox_is_ham_and_what_lies_below_it_is_not() -> None:
    assert find_role(("INBOX",)) == HAM_ROLE
    assert find_role(("INBOX", "Lists")) == NEUTRAL_ROLE
    assert find_role(("INBOX", "INBOX", "Lists")) == NEUTRAL_ROLE


def test_every_language_names_all_and_no_name_means_two_things() -> None:
    tables = tomllib.loads((Path(roles.__file__).parent / "names.toml").read_text("utf-8"))
    languages, *others = (tables[role] for role in ("junk", "trash", "archive", "ignored"))
    assert len(languages) >= 25
    assert all(other.keys() == languages.keys() for other in others)
    names = [
        {roles._fold_name((name,)) for names in table.values() for name in names.split(", ")}
        for table in (languages, *others)
    ]
    assert sum(map(len, names)) == len(set.union(*names))


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("Newsletters", ("newsletters",), True),
        ("newsletters", ("INBOX", "Newsletters"), True),
        ("INBOX/Newsletters", ("Newsletters",), True),
        ("Lists/*", ("Lists", "Python"), True),
        ("Lists/*", ("Lists", "Python", "Ideas"), True),
        ("Lists/*", ("Lists",), False),
        ("*news*", ("My newspaper",), True),
        ("news", ("My newspaper",), False),
        ("a.c", ("abc",), False),
        ("Entwürfe", ("ENTWU\u0308RFE",), True),
    ],
)
def test_patterns(pattern: str, name: tuple[str, ...], fits: bool) -> None:
    assert find_role(name, {pattern: NEWS}) == (NEWS if fits else NEUTRAL_ROLE)


def test_the_configuration_comes_before_dovecot_and_that_before_the_name() -> None:
    special = {("Junk",): "\\Trash", ("Rubbish", "Bin"): "\\Junk"}
    assert find_role(("Junk",), {"junk": NEUTRAL_ROLE}, special) == NEUTRAL_ROLE
    assert find_role(("Junk",), {"other": NEUTRAL_ROLE}, special) == TRASH_ROLE
    assert find_role(("rubbish", "bin"), {}, special) == SPAM_ROLE
    assert find_role(("INBOX",), {"INBOX": NEUTRAL_ROLE}) == NEUTRAL_ROLE
    assert find_role(("Lists",), {"Lists": NEWS, "*": NEUTRAL_ROLE}) == NEWS
    assert find_role(("Lists",), {"*": NEUTRAL_ROLE, "Lists": NEWS}) == NEUTRAL_ROLE


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


def test_children_have_the_role_of_the_nearest_of_which_one_is_known() -> None:
    assert find_role(("Junk", "2024", "May"), {"Junk/2024": NEWS}) == NEWS
    assert find_role(("Junk", "2023"), {"Junk/2024": NEWS}) == SPAM_ROLE
    assert find_role(("Lists", "Python"), {"Lists": NEWS}) == NEWS
    assert find_role(("Archive", "Sent"), {}, {("Archive",): "\\Sent"}) == IGNORED_ROLE


def test_what_is_called_junk_below_an_archive_is_in_doubt() -> None:
    """Otherwise users who keep old spam there would teach all of it as ham."""
    for name in (
        ("Archive", "Spam"),
        ("Archives", "2024", "Junk"),
        ("Archive", "Trash"),
        ("Archive", "Sent"),
        ("Kept", "Spam", "2024"),
    ):
        assert find_role(name, {"Kept": HAM_ROLE}) == NEUTRAL_ROLE
    assert (
        find_role(("Archive", "Archiv"), {})
        == find_role(("Archive", "Spam"), {"Archive/*": HAM_ROLE})
        == HAM_ROLE
    )
    assert find_role(("Junk", "Archive"), {"Junk/Archive": SPAM_ROLE}) == SPAM_ROLE


def test_gmails_own_folders_in_any_language() -> None:
    """As mbsync and the like make them, which store no special uses."""
    assert (
        find_role(("[Gmail]", "Spam"))
        == find_role(("[Gmail]", "Спам"))
        == find_role(("[Google Mail]", "迷惑メール"))
        == SPAM_ROLE
    )
    assert find_role(("[Gmail]", "Papierkorb")) == find_role(("[Google Mail]", "Bin")) == TRASH_ROLE
    for name in (
        "Gesendet",
        "Alle Nachrichten",
        "Tous les messages",
        "Вся почта",
        "すべてのメール",
        "Starred",
        "Important",
    ):
        assert find_role(("[Gmail]", name)) == IGNORED_ROLE
    assert (
        find_role(("Important",))
        == find_role(("[Gmail]",))
        == find_role(("[Gmail]", "Projects"))
        == NEUTRAL_ROLE
    )


def test_dots_part_levels_where_the_whole_name_says_nothing() -> None:
    """As in the directories that OfflineIMAP makes."""
    assert (
        find_role(("INBOX.Spam",))
        == find_role(("[Gmail].Spam",))
        == find_role(("Junk.2024",))
        == SPAM_ROLE
    )
    assert find_role(("Archive.2026",)) == HAM_ROLE
    assert (
        find_role(("Archive.Spam",))
        == find_role(("INBOX.Projects",))
        == find_role((".",))
        == NEUTRAL_ROLE
    )
    assert find_role(("Junk.",)) == NEUTRAL_ROLE
    assert find_role(("Junk.Mail",), {"Junk.Mail": NEWS}) == NEWS
    assert find_role(("Lists", "Junk.Mail")) == NEUTRAL_ROLE


def test_roles_in_words() -> None:
    assert [parse_role(text) for text in ("spam", "ham", "newsletters")] == [
        SPAM_ROLE,
        HAM_ROLE,
        NEWS,
    ]
    assert [parse_role(text) for text in ("neutral", "trash", "ignored")] == [
        NEUTRAL_ROLE,
        TRASH_ROLE,
        IGNORED_ROLE,
    ]
    assert parse_role("class") == Role(FolderKind.CLASS, "class")
