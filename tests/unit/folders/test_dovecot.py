"""What Dovecot says about its folders: its own output where it is installed, written output for
other versions.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.folders import roles
from spamguard.folders.roles import DovecotSettings, parse_dovecot, read_dovecot

installed = pytest.mark.skipif(
    shutil.which("doveconf") is None, reason="there is no Dovecot on this machine"
)

SPECIAL = r"""
  mailbox Junk {
    auto = create
    special_use = \Junk
  }
  mailbox "Sent Messages" {
    special_use = \Sent
  }
  mailbox "Courrier indésirable" {
    special_use = \Junk
  }
  mailbox Lists {
    auto = create
  }
"""


def configured(directory: Path, text: str) -> DovecotSettings:
    file = directory / "dovecot.conf"
    file.write_text(text)
    return parse_dovecot(subprocess.check_output(["doveconf", "-n", "-c", file], text=True))


@installed
def test_what_a_real_dovecot_says_of_a_flat_maildir(tmp_path: Path) -> None:
    found = configured(
        tmp_path,
        f"mail_location = maildir:~/Maildir\nnamespace inbox {{\n  inbox = yes\n{SPECIAL}\n}}\n",
    )
    special = {
        ("Junk",): "\\Junk",
        ("Sent Messages",): "\\Sent",
        ("Courrier indésirable",): "\\Junk",
    }
    assert found == DovecotSettings("maildir", special)


@installed
def test_what_a_real_dovecot_says_of_nested_folders_with_a_prefix(tmp_path: Path) -> None:
    text = r"""
mail_location = maildir:%h/mail:INDEX=/var/idx:LAYOUT=fs
namespace inbox {
  inbox = yes
  prefix = INBOX/
  separator = /
  mailbox "Junk/Old {x}" {
    special_use = \Junk \Archive
  }
  mailbox INBOX/Bin {
    special_use = \Trash
  }
}
namespace other {
  prefix = shared/%%u/
  separator = /
  type = shared
  location = maildir:/x/%%u
  mailbox Junk {
    special_use = \Trash
  }
}
"""
    found = configured(tmp_path, text)
    assert found.special_uses == {("Junk", "Old {x}"): "\\Junk \\Archive", ("Bin",): "\\Trash"}
    assert (found.mail_format, found.obstacles) == ("maildir", ())


@installed
@pytest.mark.parametrize(
    ("text", "noted"),
    [
        ("mail_location = mdbox:~/mdbox\n", "mdbox"),
        ("mail_location = sdbox:~/sdbox\n", "sdbox"),
        (
            "mail_location = maildir:~/Maildir\nmail_plugins = quota zlib\n"
            "plugin {\n  zlib_save = lz4\n}\n",
            "lz4",
        ),
        (
            "mail_location = maildir:~/Maildir\nprotocol lmtp {\n  mail_plugins = zlib\n}\n"
            "plugin {\n  zlib_save = lz4\n}\n",
            "lz4",
        ),
        ("mail_location = maildir:~/Maildir\nmail_plugins = mail_crypt\n", "encrypted"),
        ("mail_location = maildir:~/Maildir:LAYOUT=index\n", "LAYOUT=index"),
        ("mail_location = maildir:~/Maildir:LAYOUT=fs:DIRNAME=.mails\n", "DIRNAME"),
        ("mail_location = maildir:~/mail:INBOX=/var/inboxes/%u\n", "/var/inboxes/%u"),
        ("mail_location = maildir:~/mail:INBOX=~/mailbox\n", "~/mailbox"),
    ],
)
def test_a_real_dovecot_that_cannot_be_watched_is_noted(
    tmp_path: Path, text: str, noted: str
) -> None:
    (note,) = configured(tmp_path, text).obstacles
    assert noted in note


def test_dovecot_2_4() -> None:
    text = r"""
# 2.4.1 (7d8c0e5759): /etc/dovecot/dovecot.conf
dovecot_config_version = 2.4.1
mail_driver = maildir
mail_path = ~/Maildir
mailbox_list_layout = fs
mail_compress_write_method = lz4
mail_plugins {
  quota = yes
  mail_compress = yes
  mail_crypt = no
}
namespace inbox {
  inbox = yes
  separator = /
  mailbox Junk {
    special_use = "\\Junk"
  }
  mailbox "Deleted Items" {
    special_use = \Trash
  }
}
"""
    found = parse_dovecot(text)
    assert found.mail_format == "maildir"
    assert found.special_uses == {("Junk",): "\\Junk", ("Deleted Items",): "\\Trash"}
    assert len(found.obstacles) == 1
    assert "lz4" in found.obstacles[0]
    assert not parse_dovecot(text.replace("lz4", "zstd")).obstacles
    assert (
        "LAYOUT=index"
        in parse_dovecot(text.replace("_layout = fs", "_layout = index")).obstacles[0]
    )
    assert "/in" in parse_dovecot(f"mail_inbox_path = /in\n{text}").obstacles[0]


@given(st.text(alphabet='ab {}="\\#\n', max_size=200))
def test_no_text_raises(text: str) -> None:
    parse_dovecot(text)


def test_without_dovecot_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO, "spamguard.folders"):
        assert read_dovecot() == DovecotSettings()
    assert "there is no doveconf" in caplog.text


@pytest.mark.parametrize(
    ("script", "told"), [("echo wrong >&2; exit 89", "wrong"), ("exec sleep 60", "timed out")]
)
def test_a_failing_or_slow_dovecot_is_reported(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    script: str,
    told: str,
) -> None:
    command = tmp_path / "doveconf"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(roles, "_TIMEOUT", 0.5)
    assert read_dovecot() == DovecotSettings()
    assert told in caplog.text
    assert len(caplog.records) == 1
