"""What a file says becomes settings, and settings can be written as a file again."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from spamguard.config import schema
from spamguard.config.load import load_settings
from spamguard.config.options import (
    Action,
    Certificate,
    DoorLimits,
    Endpoint,
    HistorySettings,
    Hop,
    HostPort,
    Listener,
    OddBytes,
    OnError,
    Policy,
    Position,
    Protocol,
    Rule,
    Scanner,
    ScannerLimits,
    Scoring,
    Settings,
    SharedSettings,
    TeachByMail,
    TeachingUser,
    TeachSettings,
    Tls,
    Watch,
    Web,
    WebProxy,
    parse_endpoint,
)
from spamguard.config.schema import dump_settings, to_plain
from spamguard.config.shared import DatabaseTls
from spamguard.errors import ConfigError
from tests.support.certificates import needs_openssl, self_signed
from tests.unit.config.files import SHIPPED, listener, parts


def test_a_whole_file(load):
    settings = load("""
state: /var/lib/spamguard
user: spamguard
workers: 3
listeners:
  - listen: smtp://127.0.0.1:10025
    position: after-queue
    next_hop: smtp://127.0.0.1:10026
    trusted: [127.0.0.0/8]
    on_error: defer
    spam_threshold: 0.99
    odd_bytes: refuse
    rules:
      - {when: spam, from_probability: 0.999, action: quarantine}
      - {when: newsletter, action: redirect, to: news@example.org}
    limits: {message_size: 20MB, recipients: 7}
  - listen: lmtp://[::1]:24
    position: standalone
    next_hop: {to: lmtp:/run/dovecot/lmtp, tls: off}
    hostname: mx.example.org
    tell_probability: true
scoring: {deadline: 4s}
history: {age: 7d, size: 1GiB, private: true}
watch:
  - /home/*/Maildir/
  - maildir: /var/vmail/*/*/Maildir
    user: "anna"
    folders: {"Lists/*": ham, News: newsletter, Bin: trash}
    we_file: true
    lessons_per_day: 0
    answered_is_ham: true
""")
    first = Listener(
        parse_endpoint("smtp://127.0.0.1:10025"),
        Position.AFTER_QUEUE,
        Hop(parse_endpoint("smtp://127.0.0.1:10026")),
        Policy(
            (
                Rule("spam", Action.QUARANTINE, 0.999),
                Rule("newsletter", Action.REDIRECT, to="news@example.org"),
            ),
            spam_threshold=0.99,
            on_error=OnError.DEFER,
        ),
        DoorLimits(message_size=20_000_000, recipients=7),
        OddBytes.REFUSE,
        ("127.0.0.0/8",),
    )
    second = Listener(
        parse_endpoint("lmtp://[::1]:24"),
        Position.STANDALONE,
        Hop(parse_endpoint("lmtp:/run/dovecot/lmtp"), Tls.OFF),
        Policy(tell_probability=True),
        hostname="mx.example.org",
    )
    scoring, history = Scoring(4.0), HistorySettings(7, 1 << 30, True)
    folders = (("Lists/*", "ham"), ("News", "newsletter"), ("Bin", "trash"))
    watch = (
        Watch("/home/*/Maildir"),
        Watch(
            "/var/vmail/*/*/Maildir",
            "anna",
            folders,
            True,
            0,
            True,
        ),
    )
    assert settings == Settings(
        Path("/var/lib/spamguard"), (first, second), 3, scoring, history, "spamguard", watch
    )


def test_the_shipped_file_has_the_defaults():
    settings = load_settings(SHIPPED)
    (one,) = settings.listeners
    usual = Listener(one.listen, one.position, Hop(one.next_hop.to))
    assert settings == Settings(settings.state, (usual,))


def test_the_shipped_file_has_every_option():
    """Options whose default is "none" are in comments."""
    text = SHIPPED.read_text("utf-8")
    assert len(parts()) == 17
    for part in parts():
        for key in part.model_fields:
            assert re.search(rf"(^|[ {{]){key}(:|  )", text, re.M), f"{part.__name__}.{key}"
    shown = yaml.safe_load(text)
    told = to_plain(load_settings(SHIPPED))
    assert set(shown) == set(told)
    assert set(shown["listeners"][0]) == set(told["listeners"][0])
    for part in ("next_hop", "limits"):
        assert set(shown["listeners"][0][part]) == set(told["listeners"][0][part])


def test_the_commented_examples_of_the_shipped_file_are_valid(load):
    text = (
        SHIPPED.read_text("utf-8")
        .replace("    rules: []\n", "")
        .replace("    # rules:\n", "    rules:\n")
    )
    text = text.replace("    #   - {", "      - {")
    for indent in ("", "    "):
        text = re.sub(
            rf"^{indent}teach: null\n((?:{indent}# .*\n)+)",
            lambda found: found[1].replace("# ", ""),
            text,
            flags=re.M,
        )
    for empty in ("aliases: {}", r"scanners: \[\]"):
        text = re.sub(
            rf"^{empty}\n((?:# .*\n)+)",
            lambda found: re.sub("^# ", "", found[1], flags=re.M),
            text,
            flags=re.M,
        )
    text, _, watch = text.partition("watch: []\n")
    text += watch.replace("# ", "", 1).replace("\n# ", "\n")
    settings = load(text)
    assert [watch.maildir for watch in settings.watch] == [
        "/home/*/Maildir",
        "/var/vmail/*/*/Maildir",
    ]
    assert settings.watch[1].folders[1] == ("Newsletters", "newsletter")
    (one,) = settings.listeners
    assert [rule.action for rule in one.policy.rules] == [
        Action.QUARANTINE,
        Action.REDIRECT,
        Action.TAG,
    ]
    assert one.teach == TeachByMail(
        (("spam@example.org", "spam"), ("ham@example.org", "ham")), ("*@example.org",)
    )
    assert settings.teach == TeachSettings(Path("/var/spool/spamguard/teach"))
    assert dict(settings.aliases)["info"] == ""
    assert len(settings.aliases) == 4
    assert [str(scanner.listen) for scanner in settings.scanners] == [
        "rspamd://127.0.0.1:11333",
        "spamd://127.0.0.1:783",
        "milter://127.0.0.1:11332",
    ]
    assert settings.scanners[0] == Scanner(settings.scanners[0].listen)  # every default


def test_every_setting_can_be_said():
    """A field that is added to the settings must get a key."""
    named = {name for part in parts() for name in part.model_fields}
    groups = {*(part.fills for part in parts()), Policy}
    options = {
        field.name
        for kind in groups
        for field in fields(kind)
        if field.type not in ("int", "float")
    }
    assert options - {"policy"} == named


@pytest.mark.parametrize("text", ["127.0.0.1:9110", "[::1]:9110", "0.0.0.0:1"])
def test_where_monitors_may_ask(load, text):
    settings = load(listener(f"metrics: '{text}'\n"))
    assert str(settings.metrics) == text
    assert to_plain(settings)["metrics"] == text
    exposed = [warning for warning in schema.find_warnings(settings) if "metrics" in warning]
    assert len(exposed) == text.startswith("0.")


@needs_openssl
def test_web_in_one_word_and_with_how(load, tmp_path):
    assert load(listener("web: '[::1]:8080'\n")).web == Web(HostPort("::1", 8080))
    pem = self_signed(tmp_path)
    text = re.sub(r"/etc/ssl/(private/)?spam.(pem|key)", str(pem), SHIPPED.read_text("utf-8"))
    text = re.sub(
        r"^web: null\n# web: \S+\n((?:# .*\n)+)",
        lambda found: found[1].replace("# ", ""),
        text,
        flags=re.M,
    )
    settings = load(text)
    assert settings.web == Web(
        HostPort("192.0.2.1", 8443),
        ("spam.example.org",),
        Certificate(pem, pem),
        WebProxy(("192.0.2.2/32",), "X-Remote-User", ("postmaster",)),
    )
    assert str(settings.web) == "https://192.0.2.1:8443"
    assert load(dump_settings(settings)) == settings


def test_a_node_of_several_machines(load, tmp_path):
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o640)
    text = (
        "shared: {database: 'host=db1,db2 dbname=spamguard user=spamguard_node', "
        f"password_file: {password}, tls: {{ca: {password}}}, url: 'https://mx1.example:8443/', "
        "name: mx1}"
    )
    settings = load(listener(text))
    assert settings.shared == SharedSettings(
        "host=db1,db2 dbname=spamguard user=spamguard_node",
        password,
        DatabaseTls(ca=password),
        "https://mx1.example:8443",
        "mx1",
    )
    assert load(dump_settings(settings)) == settings


@needs_openssl
def test_a_certificate_that_is_there(load, tmp_path):
    pem, key = self_signed(tmp_path), tmp_path / "localhost.key"
    (one,) = load(listener(f"    tls: {{certificate: {pem}, key: {key}}}\n")).listeners
    assert one.tls == Certificate(pem, key)


def test_before_the_queue_may_refuse(load):
    text = listener(
        "    rules:\n      - {when: spam, action: reject, from_probability: 0.9}\n",
        position="before-queue",
    )
    assert load(text).listeners[0].policy.rules == (Rule("spam", Action.REJECT, 0.9),)


def test_plain_words_are_those_of_yaml_1_2(load):
    text = listener("user: no\n", hop="{to: 'smtp://192.0.2.1:25', tls: off}")
    assert load(text).user == "no"
    assert load(text).listeners[0].next_hop.tls is Tls.OFF


def test_aliases_may_be_used_a_little(load):
    second = "{listen: 'smtp://127.0.0.1:2', position: standalone, next_hop: 'lmtp:/x', rules: *r}"
    more = f"    rules: &r [{{when: spam, action: quarantine}}]\n  - {second}\n"
    one, other = load(listener(more)).listeners
    assert one.policy.rules == other.policy.rules == (Rule("spam", Action.QUARANTINE),)


@pytest.mark.parametrize("place", ["nowhere.yaml", "."])
def test_a_file_that_cannot_be_read(tmp_path, place):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / place)


# ---- there and back


@needs_openssl
def test_dumped_settings_can_be_loaded_again(load, tmp_path):
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    first = load_settings(SHIPPED)
    rules = (
        Rule("spam", Action.TAG, 0.5, subject_prefix="[x] "),
        Rule("news", Action.REDIRECT, to="a@example.org"),
    )
    one = replace(
        first.listeners[0],
        policy=Policy(rules, 0.99, True, OnError.DEFER),
        limits=DoorLimits(message_size=1001),
        odd_bytes=OddBytes.REFUSE,
        tls=Certificate(self_signed(tmp_path), tmp_path / "localhost.key"),
        hostname="mx.example.org",
        teach=TeachByMail(
            (("s@example.org", "spam"),),
            ("*@example.org", "a@example.net"),
            ("192.0.2.0/24",),
            TeachingUser.LOCAL_PART,
        ),
    )
    settings = replace(
        first,
        listeners=(one,),
        user="no",
        workers=3,
        history=HistorySettings(1, 12345, True),
        watch=(
            Watch(
                "/home/*/Maildir",
                "x@y",
                (("Old*", "ignored"),),
                False,
                answered_is_ham=True,
                flagged_is_ham=True,
            ),
        ),
        teach=TeachSettings(Path("/var/spool/x"), ("vmail",), 7),
        personal=True,
        aliases=(("*@example.net", "anna"), ("info", "")),
        scanners=(
            Scanner(
                Endpoint(Protocol.RSPAMD, "192.0.2.1", 11333),
                Policy(
                    spam_threshold=0.99,
                    tell_probability=True,
                    on_error=OnError.DEFER,
                ),
                ScannerLimits(1, 2, 3),
                ("192.0.2.0/24",),
                ("192.0.2.1/32",),
                ("192.0.2.2/32",),
                tmp_path / "password",
            ),
            Scanner(
                Endpoint(Protocol.MILTER, path=Path("/run/m.sock")),
                Policy((Rule("spam", Action.QUARANTINE, 0.95),)),
            ),
        ),
    )
    for found in (first, settings):
        assert load(dump_settings(found)) == found
    assert "secret" not in dump_settings(settings)


# ---- scanners


def test_scanners_need_no_listener(load):
    settings = load("state: /x\nscanners:\n  - listen: milter:/run/spamguard/milter.sock\n")
    assert (
        settings.doors
        == settings.scanners
        == (Scanner(Endpoint(Protocol.MILTER, path=Path("/run/spamguard/milter.sock"))),)
    )
    assert not settings.accepts_lessons
    assert load(dump_settings(settings)) == settings


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("secret\n", 0o640, ""),
        ("secret", 0o644, "chmod 0640"),
        ("\n", 0o600, "a password in its first line"),
    ],
)
def test_a_password_is_read_from_a_private_file(load, tmp_path, text, mode, told):
    file = tmp_path / "password"
    file.write_text(text)
    file.chmod(mode)
    scanner = (
        f"state: /x\nscanners:\n  - listen: rspamd://127.0.0.1:11333\n    password_file: {file}\n"
    )
    if told:
        with pytest.raises(ConfigError, match=told):
            load(scanner)
    else:
        assert load(scanner).accepts_lessons


# ---- warnings

_SPAM, _SURE_SPAM = (
    "when: spam, action: tag",
    "when: spam, from_probability: 0.99, action: quarantine",
)
_OWN_CLASS = (
    "is a class of its own, of good mail unless it was made with `learn --unwanted`: did you mean"
)
_TAUGHT = "{addresses: {a@b.example: junk, c@b.example: ham}, senders: ['*@b.example']}"
WARNINGS = {
    # A class that a file names is made, and is good mail: spam moved to its folder was learnt so.
    f"    teach: {_TAUGHT}\nwatch: [{{maildir: /x, folders: {{Old: trahs, "
    "Bin: trash, Work: work, News: newsletter}}]\n": [
        f"smtp://127.0.0.1:10025: teach: a@b.example: junk {_OWN_CLASS} spam?",
        f"/x: folders: Old: trahs {_OWN_CLASS} trash?",
    ],
    # The first rule that fits is done: nothing was ever quarantined.
    f"    rules: [{{{_SPAM}}}, {{when: unsure, action: tag}}, {{{_SURE_SPAM}}}]\n": [
        "smtp://127.0.0.1:10025: rule 3 for spam never fits, as rule 1 does before it: put the one "
        "with the higher from_probability first"
    ],
    f"    rules: [{{{_SURE_SPAM}}}, {{{_SPAM}}}]\n": [],
}


@pytest.mark.parametrize(("text", "warnings"), WARNINGS.items())
def test_what_is_hardly_meant_is_warned_of(load, text, warnings):
    assert schema.find_warnings(load(listener(text))) == warnings


def test_nothing_is_warned_of_in_the_shipped_file():
    assert schema.find_warnings(load_settings(SHIPPED)) == []
