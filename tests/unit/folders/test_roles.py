"""What folders are for: the configuration first, then Dovecot, then the usual names."""

from __future__ import annotations

import pytest

from spamguard.folders import roles
from spamguard.folders.roles import DOUBTFUL, HAM, IGNORED, NEUTRAL, SPAM, TRASH, parse_role, role
from spamguard.folders.values import Kind, Role

NEWS = Role(Kind.CLASS, "newsletters")

JUNK_NAMES = """Junk; Spam; Bulk; Junk E-mail; junk e‑mail; Courrier indésirable; COURRIER INDÉSIRABLE; Courrier inde\u0301sirable; Pourriel
Correo no deseado; Spamverdacht; Posta indesiderata; Lixo Eletrónico; Skräppost; Ongewenste e-mail; Roskaposti; Søppelpost; Uønsket mail
Нежелательная почта; Спам; Niechciane; Wiadomości-śmieci; Nevyžádaná pošta; 垃圾邮件; 垃圾郵件; 迷惑メール; 스팸; דואר זבל; البريد غير الهام
Önemsiz; İstenmeyen; Levélszemét; Ανεπιθύμητα; Thư rác; อีเมลขยะ; Ｓｐａｍ"""


@pytest.mark.parametrize("name", [name.strip() for name in JUNK_NAMES.replace("\n", ";").split(";")])
def test_junk_in_many_languages(name: str) -> None:
    assert role((name,)) == SPAM
    assert role(("INBOX", name)) == SPAM
    assert role(("Inbox", name, "2024")) == SPAM
    assert role(("Lists", name)) in (NEUTRAL, DOUBTFUL)


@pytest.mark.parametrize(
    "name", ["Trash", "Deleted Items", "Papierkorb", "Corbeille", "Papelera", "Cestino", "Корзина", "ゴミ箱", "已删除"]
)
def test_trash(name: str) -> None:
    assert role((name,)) == role((name, "old")) == TRASH


@pytest.mark.parametrize("name", ["Archive", "Archives", "Archiv", "Archivio", "Архив", "アーカイブ"])
def test_archive(name: str) -> None:
    assert role((name,)) == role((name, "2024", "May")) == HAM


@pytest.mark.parametrize("name", ["Sent", "Gesendet", "Drafts", "ENTWÜRFE", "Templates", "Отправленные", "草稿", "EXPUNGED"])
def test_what_people_write_themselves_is_ignored(name: str) -> None:
    assert role((name,)) == role((name, "Junk")) == role(("INBOX", name, "2024")) == IGNORED


@pytest.mark.parametrize("name", ["Lists", "Projects", "spammers", "sentimental", ""])
def test_everything_else_is_neutral(name: str) -> None:
    assert {role((name,)), role((name, "Junk"))} <= {NEUTRAL, DOUBTFUL}


def test_the_inbox_is_ham_and_what_lies_below_it_is_not() -> None:
    assert role(("INBOX",)) == HAM
    assert role(("INBOX", "Lists")) == NEUTRAL
    assert role(("INBOX", "INBOX", "Lists")) == NEUTRAL


def test_every_language_names_all_and_no_name_means_two_things() -> None:
    assert len(roles._JUNK) >= 25
    assert roles._JUNK.keys() == roles._TRASH.keys() == roles._ARCHIVE.keys() == roles._NO_MAIL_THAT_CAME.keys()
    names = [
        {roles._folded((name,)) for each in table.values() for name in each.split(", ")}
        for table in (roles._JUNK, roles._TRASH, roles._ARCHIVE, roles._NO_MAIL_THAT_CAME)
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
    assert role(name, {pattern: NEWS}) == (NEWS if fits else NEUTRAL)


def test_the_configuration_comes_before_dovecot_and_that_before_the_name() -> None:
    special = {("Junk",): "\\Trash", ("Rubbish", "Bin"): "\\Junk"}
    assert role(("Junk",), {"junk": NEUTRAL}, special) == NEUTRAL
    assert role(("Junk",), {"other": NEUTRAL}, special) == TRASH
    assert role(("rubbish", "bin"), {}, special) == SPAM
    assert role(("INBOX",), {"INBOX": NEUTRAL}) == NEUTRAL
    assert role(("Lists",), {"Lists": NEWS, "*": NEUTRAL}) == NEWS
    assert role(("Lists",), {"*": NEUTRAL, "Lists": NEWS}) == NEUTRAL


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("\\Junk", SPAM),
        ("\\Trash", TRASH),
        ("\\Archive", HAM),
        ("\\Sent", IGNORED),
        ("\\Drafts", IGNORED),
        ("\\All", IGNORED),
        ("\\Flagged", IGNORED),
        ("\\Own \\junk", SPAM),
        ("\\Own", SPAM),
    ],
)
def test_special_uses(use: str, expected: Role) -> None:
    assert role(("Spam",), None, {("Spam",): use}) == expected


def test_children_have_the_role_of_the_nearest_of_which_one_is_known() -> None:
    assert role(("Junk", "2024", "May"), {"Junk/2024": NEWS}) == NEWS
    assert role(("Junk", "2023"), {"Junk/2024": NEWS}) == SPAM
    assert role(("Lists", "Python"), {"Lists": NEWS}) == NEWS
    assert role(("Archive", "Sent"), {}, {("Archive",): "\\Sent"}) == IGNORED


def test_what_is_called_junk_below_an_archive_is_in_doubt() -> None:
    """Whoever keeps old spam there would teach all of it as ham."""
    for name in (("Archive", "Spam"), ("Archives", "2024", "Junk"), ("Archive", "Trash"), ("Archive", "Sent"), ("Kept", "Spam", "2024")):
        assert role(name, {"Kept": HAM}) == NEUTRAL
    assert role(("Archive", "Archiv"), {}) == role(("Archive", "Spam"), {"Archive/*": HAM}) == HAM
    assert role(("Junk", "Archive"), {"Junk/Archive": SPAM}) == SPAM


def test_gmails_own_folders_in_any_language() -> None:
    """By mbsync and its like, which store no special uses."""
    assert role(("[Gmail]", "Spam")) == role(("[Gmail]", "Спам")) == role(("[Google Mail]", "迷惑メール")) == SPAM
    assert role(("[Gmail]", "Papierkorb")) == role(("[Google Mail]", "Bin")) == TRASH
    for name in ("Gesendet", "Alle Nachrichten", "Tous les messages", "Вся почта", "すべてのメール", "Starred", "Important"):
        assert role(("[Gmail]", name)) == IGNORED
    assert role(("Important",)) == role(("[Gmail]",)) == role(("[Gmail]", "Projects")) == NEUTRAL


def test_dots_part_levels_where_the_whole_name_says_nothing() -> None:
    """As in the directories that OfflineIMAP makes."""
    assert role(("INBOX.Spam",)) == role(("[Gmail].Spam",)) == role(("Junk.2024",)) == SPAM
    assert role(("Archive.2026",)) == HAM
    assert role(("Archive.Spam",)) == role(("INBOX.Projects",)) == role((".",)) == NEUTRAL
    assert role(("Junk.",)) == DOUBTFUL
    assert role(("Junk.Mail",), {"Junk.Mail": NEWS}) == NEWS
    assert role(("Lists", "Junk.Mail")) == DOUBTFUL


@pytest.mark.parametrize(
    ("name", "doubtful"),
    [
        (("Spamordner",), True),
        (("INBOX", "JUNK 2024"), True),
        (("Lists", "spam-filters"), True),
        (("迷惑スパム",), True),
        (("Spam",), False),
        (("Junk", "Spam 2024"), False),
        (("Archive", "Spam"), False),
        (("Trash", "Spamordner"), False),
        (("Projects",), False),
        (("Spam?",), False),
        (("Said", "Spam-Liste"), False),
    ],
)
def test_folders_that_people_may_mean_for_spam(name: tuple[str, ...], doubtful: bool) -> None:
    """Of which neither a name, nor the operator, nor Dovecot says so, nor of one above them."""
    assert role(name, {"Spam?": NEUTRAL}, {("Said",): "\\Archive"}).doubtful is doubtful


def test_roles_in_words() -> None:
    assert [parse_role(text) for text in ("spam", "ham", "newsletters")] == [SPAM, HAM, NEWS]
    assert [parse_role(text) for text in ("neutral", "trash", "ignored")] == [NEUTRAL, TRASH, IGNORED]
    assert parse_role("class") == Role(Kind.CLASS, "class")
