"""What the settings of a watch come to."""

from __future__ import annotations

import os
from dataclasses import replace

from spamguard.config.options import Endpoint, Hop, Listener, Position, Protocol, Settings, Watch
from spamguard.folders.mailbox_scan import watch_rules
from spamguard.folders.roles import FolderKind, Role, display_folder, role_lookup


def test_the_role_of_a_directory():
    role = role_lookup(
        Watch("/x", folders=(("Lists/*", "newsletter"), ("Bin", "trash"))), {("Seen",): "\\Archive"}
    )
    assert role("") == role(".Archive") == role(".Seen") == Role(FolderKind.CLASS, "ham")
    assert role(".Lists.Python") == role("Lists/Python") == Role(FolderKind.CLASS, "newsletter")
    assert role("Junk") == Role(FolderKind.CLASS, "spam")
    assert role(".Bin").kind is FolderKind.TRASH
    assert role(".Projects").kind is role(".Junk-2024").kind is FolderKind.NEUTRAL
    assert role(".Sent").kind is role("..").kind is FolderKind.IGNORED


def test_names_for_people():
    assert [display_folder(one) for one in ("", ".Junk.2024", "Lists/Python", "..")] == [
        "INBOX",
        "Junk/2024",
        "Lists/Python",
        "..",
    ]
    assert display_folder(os.fsdecode(b".Junk.Entw\xfcrfe")) == "Junk/Entw\\xfcrfe"


def test_our_own_maildir_is_one_that_we_file_into(tmp_path):
    hop = Hop(Endpoint(Protocol.MAILDIR, path=tmp_path / "Maildir"))
    settings = Settings(
        tmp_path, (Listener(Endpoint(Protocol.SMTP, "127.0.0.1", 25), Position.STANDALONE, hop),)
    )
    for watch, expected in (
        (Watch(f"{tmp_path}/Maildir"), True),
        (Watch(f"{tmp_path}/Maildir", we_file=False), False),
        (Watch(f"{tmp_path}/*"), False),
        (Watch(f"{tmp_path}/*", we_file=True), True),
    ):
        (rule,) = watch_rules(replace(settings, watch=(watch,)), {})
        assert rule.we_file is expected
