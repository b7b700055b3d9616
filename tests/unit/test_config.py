"""The configuration: what a file says becomes settings, every mistake is told where it is, and nothing a file holds does harm."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from spamguard import config
from spamguard.config import schema, tree, units
from spamguard.config.effective import plain
from spamguard.errors import ConfigError
from spamguard.settings import (
    Action,
    Certificate,
    DoorLimits,
    Endpoint,
    History,
    Hop,
    Listener,
    OddBytes,
    OnError,
    Policy,
    Position,
    Protocol,
    Rule,
    Scoring,
    Settings,
    Tls,
    parse_endpoint,
)

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "config" / "spamguard.yaml"
STATE = "state: /var/lib/spamguard\n"


@pytest.fixture
def load(tmp_path):
    """Loads a text as a file."""

    def read(text: str | bytes) -> Settings:
        file = tmp_path / "some.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config.load(file)

    return read


@pytest.fixture
def mistakes(load):
    """The mistakes of a text, without the name of the file."""

    def find(text: str | bytes) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text)
        assert all("\n" not in one and "some.yaml:" in one for one in caught.value.problems)
        return [one.partition("some.yaml:")[2] for one in caught.value.problems]

    return find


def listener(
    more: str = "", *, listen: str = "smtp://127.0.0.1:10025", position: str = "standalone", hop: str = "smtp://192.0.2.1:25"
) -> str:
    """A file with one listener; `more` is indented by four and begins in line 6."""
    return f"{STATE}listeners:\n  - listen: {listen}\n    position: {position}\n    next_hop: {hop}\n{more}"


def test_a_whole_file(load):
    found = load("""
state: /var/lib/spamguard
user: spamguard
workers: 3
listeners:
  - listen: smtp://127.0.0.1:10025
    position: after-queue
    next_hop: smtp://127.0.0.1:10026
    trusted: [127.0.0.0/8]
    on_error: defer
    spam_threshold: 1 in 1,000
    odd_bytes: refuse
    rules:
      - {when: spam, from_probability: 0.999, action: quarantine}
      - {when: newsletter, action: redirect, to: news@example.org}
    limits: {message_size: 20MB, recipients: 7, data_timeout: 1.5m}
  - listen: lmtp://[::1]:24
    position: standalone
    next_hop: {to: lmtp:/run/dovecot/lmtp, tls: off, connect: 5s, sessions: 3}
    hostname: mx.example.org
    tell_probability: true
    forged: [X-Foo*]
scoring: {deadline: 4s, scorers: 2}
history: {age: 7d, size: 1GiB}
""")
    first = Listener(
        parse_endpoint("smtp://127.0.0.1:10025"),
        Position.AFTER_QUEUE,
        Hop(parse_endpoint("smtp://127.0.0.1:10026")),
        Policy(
            (Rule("spam", Action.QUARANTINE, 0.999), Rule("newsletter", Action.REDIRECT, to="news@example.org")),
            one_wrong_in=1000,
            on_error=OnError.DEFER,
        ),
        DoorLimits(message_bytes=20_000_000, recipients=7, data_seconds=90.0),
        OddBytes.REFUSE,
        ("127.0.0.0/8",),
    )
    second = Listener(
        parse_endpoint("lmtp://[::1]:24"),
        Position.STANDALONE,
        Hop(parse_endpoint("lmtp:/run/dovecot/lmtp"), Tls.OFF, connect_seconds=5.0, sessions=3),
        Policy(tell_probability=True, forged=("X-Foo*",)),
        hostname="mx.example.org",
    )
    scoring, history = Scoring(4.0, 2), History(7, 1 << 30)
    assert found == Settings(Path("/var/lib/spamguard"), (first, second), 3, scoring, history, "spamguard")


def test_the_shipped_file_has_the_defaults():
    found = config.load(SHIPPED)
    (one,) = found.listeners
    usual = Listener(one.endpoint, one.position, Hop(one.next_hop.endpoint))
    assert found == Settings(found.state, (usual,))


def parts() -> list[type[schema.Part]]:
    return [one for one in vars(schema).values() if isinstance(one, type) and issubclass(one, schema.Part) and one is not schema.Part]


def test_the_shipped_file_has_every_option():
    """Those whose default is "none" stand in comments."""
    text = SHIPPED.read_text("utf-8")
    assert len(parts()) == 8
    for part in parts():
        for name, field in part.model_fields.items():
            assert re.search(rf"(^|[ {{]){field.alias}(:|  )", text, re.M), f"{part.__name__}.{name}"
    shown = yaml.safe_load(text)
    told = plain(config.load(SHIPPED))
    assert set(shown) == set(told)
    assert set(shown["listeners"][0]) == set(told["listeners"][0])
    for part in ("next_hop", "limits"):
        assert set(shown["listeners"][0][part]) == set(told["listeners"][0][part])


def test_what_the_shipped_file_shows_in_comments_works(load):
    text = SHIPPED.read_text("utf-8").replace("    rules: []\n", "").replace("    # rules:\n", "    rules:\n")
    text = text.replace("    #   - {", "      - {")
    (one,) = load(text).listeners
    assert [rule.action for rule in one.policy.rules] == [Action.QUARANTINE, Action.REDIRECT, Action.TAG]


def test_every_setting_can_be_said():
    """A field that is added to the settings must get a key."""
    named = {name for part in parts() for name in part.model_fields}
    of = (Settings, Listener, Policy, Hop, Rule, DoorLimits, Certificate, Scoring, History)
    assert {one.name for kind in of for one in fields(kind)} - {"policy"} == named - {"speed_adjust"}


MISTAKES = [
    ("", ["1:1: expected the key 'listeners'", "1:1: expected the key 'state', the directory of the filter"]),
    ("- 1\n", ["1:1: the file: expected a mapping of keys to values, found a list"]),
    (STATE + "listeners: []\n", ["2:1: listeners: expected at least one, found none"]),
    (STATE + "listeners: 5\n", ["2:1: listeners: expected a list, found 5"]),
    (listener("workres: 5\n"), ["6:1: unknown key 'workres': did you mean 'workers'?"]),
    (listener("    rulez: []\n"), ["6:5: unknown key 'rulez': did you mean 'rules'?"]),
    (listener("scoring: {zzz: 1}\n"), ["6:11: unknown key 'zzz': expected one of deadline, scorers"]),
    (listener("workers: many\n"), ["6:1: workers: expected a whole number from 0 to 1,024, found 'many'"]),
    (listener("workers: true\n"), ["6:1: workers: expected a whole number from 0 to 1,024, found true"]),
    (listener("workers: '5'\n"), ["6:1: workers: expected a whole number from 0 to 1,024, found '5'"]),
    (listener("workers:\n"), ["6:1: workers: expected a whole number from 0 to 1,024, found nothing"]),
    (listener("user: a b\n"), ["6:1: user: expected the name of a user, found 'a b'"]),
    (listener("    on_error: pas\n"), ["6:5: on_error: expected one of pass, defer, found 'pas': did you mean 'pass'?"]),
    (listener("    tell_probability: yes\n"), ["6:5: tell_probability: expected true or false, found 'yes'"]),
    (listener("    rules: [5]\n"), ["6:13: rules: expected a mapping of keys to values, found 5"]),
    (listener("    spam_threshold: 1 in 1\n"), ["6:5: spam_threshold: expected fixed, or such as 1 in 1000, found '1 in 1'"]),
    (
        listener("    odd_bytes: normalize\n"),
        ["6:5: odd_bytes: expected one of auto, refuse, normalise, found 'normalize': did you mean 'normalise'?"],
    ),
    (
        listener("    clients: [192.0.2.1/24]\n"),
        ["6:15: clients: expected a network, found '192.0.2.1/24', an address within 192.0.2.0/24"],
    ),
    (listener("    trusted: [x]\n"), ["6:15: trusted: expected a network such as 192.0.2.0/24 or 2001:db8::/32, found 'x'"]),
    (listener("    hostname: a b\n"), ["6:5: hostname: expected a host name, found 'a b'"]),
    (listener("    forged: ['X Y']\n"), ["6:14: forged: expected the name of a header field, * at its end for any, found 'X Y'"]),
    (listener("    limits: {recipients: 0}\n"), ["6:14: recipients: expected a whole number from 1 to 1,000,000, found 0"]),
    (
        listener("    limits: {message_size: 5}\n"),
        ["6:14: message_size: expected a size such as 512KiB, 20MB or 1GiB, found 5 without a unit"],
    ),
    (
        listener("    limits: {data_timeout: 0s}\n"),
        ["6:14: data_timeout: expected a duration such as 30s, 10m, 2h or 1d, above 0 and not endless, found 0s"],
    ),
    (listener("history: {age: 36h}\n"), ["6:11: age: expected whole days such as 30d, found 36h"]),
    (listener(hop="{tls: required}"), ["5:5: expected the key 'to', as in to: smtp://127.0.0.1:10026"]),
    (
        listener(hop="smtp://x"),
        ["5:5: to: expected smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path, found 'smtp://x'"],
    ),
    (listener(hop="smtp://x:0"), ["5:5: expected a port from 1 to 65535"]),
    (listener(position="nowhere"), ["4:5: position: expected one of before-queue, after-queue, standalone, found 'nowhere'"]),
    (
        listener(listen="smtp://localhost:25"),
        [
            "3:5: listen: expected smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT with an IP address, found 'smtp://localhost:25': "
            "write 127.0.0.1 instead of localhost"
        ],
    ),
    (
        listener(listen="lmtp:/run/x"),
        ["3:5: listen: expected smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT with an IP address, found 'lmtp:/run/x'"],
    ),
    ("state: var\n" + listener()[len(STATE) :], ["1:1: state: expected an absolute path, found 'var'"]),
    (listener("user: a\nuser: b\n"), ["7:1: the key 'user' is there twice, first in line 6"]),
    (listener("user: !!python/name:os.system x\n"), ["6:7: the tag 'tag:yaml.org,2002:python/name:os.system' has no meaning here"]),
    (listener("? [a]\n: b\n"), ["6:3: expected a word as key"]),
    (listener("user: &a [*a]\n"), ["6:7: an alias stands inside what it names"]),
    (listener("user: *a\n"), ["6:7: is not YAML here: found undefined alias 'a'"]),
    (listener("user: 'x\n"), ["7:1: is not YAML here: found unexpected end of stream"]),
    (STATE + "---\n" + STATE, ["2:1: is not YAML here: but found another document"]),
    (b"a: \xff\n", ["1:1: expected text in UTF-8"]),
    (b"a: b\nc: \x00\n", ["2:4: character U+0000 is not allowed"]),
    (b"a: " + b"x" * tree.LONGEST, ["1:1: the file is larger than 1,000,000 bytes"]),
    ("[" * 50_000, ["1:21: nested deeper than 20 levels"]),
    ("a: &a x\nb: [" + "*a, " * 17 + "]\n", ["2:69: more than 16 aliases"]),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES, ids=[re.sub(r"\W+", "-", told[0])[:70] for _, told in MISTAKES])
def test_a_mistake_is_told_where_it_is(mistakes, text, told):
    assert mistakes(text) == told


CONTRADICTIONS = [
    (
        listener("    rules:\n      - {when: spam, action: reject, from_probability: 0.95}\n", position="after-queue"),
        "7:22: reject is for before-queue and standalone: after the queue Postfix would bounce to forged senders",
    ),
    (
        listener("    rules:\n      - {when: spam, action: defer, from_probability: 0.5}\n", position="after-queue"),
        "7:22: defer is for before-queue and standalone: after the queue Postfix would bounce to forged senders",
    ),
    (listener("    rules:\n      - {when: spam, action: reject}\n"), "7:22: reject needs a from_probability of 0.9 or more"),
    (
        listener("    rules:\n      - {when: spam, action: reject, from_probability: 0.89}\n"),
        "7:38: reject needs a from_probability of 0.9 or more",
    ),
    (listener("    rules:\n      - {when: spam, action: defer}\n"), "7:22: defer needs a from_probability above 0"),
    (
        listener("    rules:\n      - {when: spam, action: defer, from_probability: 1, subject_prefix: X}\n"),
        "7:58: defer leaves no message whose subject could be changed",
    ),
    (
        listener("    rules:\n      - {when: spam, action: redirect}\n"),
        "7:22: redirect needs the address to redirect to, as in to: held@example.org",
    ),
    (
        listener("    rules:\n      - {when: spam, action: tag, to: a@example.org}\n"),
        "7:35: only redirect has an address, tag has none",
    ),
    (
        listener("    speed_adjust: true\n", hop="lmtp:/run/x"),
        "6:5: with speed_adjust Postfix sends all recipients in one transaction, and the answers of lmtp for each cannot become one: "
        "switch it off there, or hand on by SMTP",
    ),
    (listener(hop="smtp://127.0.0.1:10025"), "5:5: mail would come back: smtp://127.0.0.1:10025 is where this daemon listens"),
    (listener(hop="smtp://localhost:10025"), "5:5: mail would come back: smtp://localhost:10025 is where this daemon listens"),
    (
        listener("    clients: [10.0.0.0/8]\n", listen="smtp://0.0.0.0:10025", hop="smtp://127.0.0.1:10025"),
        "5:5: mail would come back: smtp://127.0.0.1:10025 is where this daemon listens",
    ),
    (
        listener(listen="smtp://192.0.2.7:25"),
        "3:5: smtp://192.0.2.7:25 can be reached from other machines: list the networks that may send, as in clients: [192.0.2.0/24]",
    ),
    (
        listener("  - {listen: 'lmtp://127.0.0.1:10025', position: standalone, next_hop: 'lmtp:/x'}\n"),
        "6:6: listener 1 listens there already",
    ),
    (
        listener("    tls: {certificate: /nowhere.pem, key: /dev/null}\n"),
        "6:11: certificate: expected a file that can be read, found '/nowhere.pem' (No such file or directory)",
    ),
]


@pytest.mark.parametrize(("text", "told"), CONTRADICTIONS, ids=[re.sub(r"\W+", "-", told)[:60] for _, told in CONTRADICTIONS])
def test_what_contradicts_is_told(mistakes, text, told):
    assert mistakes(text) == [told]


def test_all_mistakes_at_once(mistakes):
    looping = "{listen: 'smtp://127.0.0.1:1', position: standalone, next_hop: 'smtp://127.0.0.1:1'}"
    text = f"stat: /x\nworkers: x\nlisteners:\n  - {looping}\n  - 5\n"
    assert mistakes(text) == [
        "1:1: expected the key 'state', the directory of the filter",
        "1:1: unknown key 'stat': did you mean 'state'?",
        "2:1: workers: expected a whole number from 0 to 1,024, found 'x'",
        "4:58: mail would come back: smtp://127.0.0.1:1 is where this daemon listens",
        "5:5: listeners: expected a mapping of keys to values, found 5",
    ]


def test_a_certificate_that_is_there(load, tmp_path):
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).write_text("x")
    (one,) = load(listener(f"    tls: {{certificate: {tmp_path}/c.pem, key: {tmp_path}/k.pem}}\n")).listeners
    assert one.tls == Certificate(tmp_path / "c.pem", tmp_path / "k.pem")


def test_before_the_queue_may_refuse(load):
    text = listener("    rules:\n      - {when: spam, action: reject, from_probability: 0.9}\n", position="before-queue")
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
        config.load(tmp_path / place)


def test_a_subject_prefix_is_warned_of(load):
    (told,) = config.warnings(load(listener('    rules: [{when: spam, action: tag, subject_prefix: "[x] "}]\n')))
    assert "DKIM" in told
    assert "rule 1" in told
    assert config.warnings(config.load(SHIPPED)) == []


# ---- the command line


def test_without_any_configuration(tmp_path):
    found = config.from_command_line(None, usual_state=tmp_path)
    maildir = Endpoint(Protocol.MAILDIR, path=tmp_path / "Maildir")
    assert found == Settings(tmp_path, (Listener(parse_endpoint("smtp://127.0.0.1:10025"), Position.STANDALONE, Hop(maildir)),))


def test_the_command_line_without_a_file(tmp_path):
    found = config.from_command_line(
        None, usual_state=Path("/nowhere"), state=tmp_path, listen="lmtp://127.0.0.1:24", next_hop="smtp://192.0.2.1:25"
    )
    assert found.state == tmp_path
    assert [str(one.endpoint) for one in found.listeners] == ["lmtp://127.0.0.1:24"]
    assert str(found.listeners[0].next_hop.endpoint) == "smtp://192.0.2.1:25"


def test_the_command_line_wins_over_the_file(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text(listener("    on_error: defer\n"))
    usual = config.from_command_line(file, usual_state=Path("/usual"))
    assert usual == config.load(file)
    found = config.from_command_line(
        file, usual_state=Path("/usual"), state=Path("relative"), listen="smtp://127.0.0.1:9", next_hop="lmtp:/x"
    )
    (one,) = found.listeners
    assert (found.state, str(one.endpoint), str(one.next_hop.endpoint)) == (Path.cwd() / "relative", "smtp://127.0.0.1:9", "lmtp:/x")
    assert one.policy.on_error is OnError.DEFER
    file.write_text(listener().replace(STATE, ""))
    assert config.from_command_line(file, usual_state=Path("/usual")).state == Path("/usual")


@pytest.mark.parametrize(
    ("listen", "next_hop", "told"),
    [
        ("smtp://x", None, "--listen: listen: expected smtp://ADDRESS:PORT"),
        (None, "x", "--next-hop: to: expected smtp://HOST:PORT"),
        ("smtp://0.0.0.0:25", None, "--listen: smtp://0.0.0.0:25 can be reached from other machines: list"),
        (None, "smtp://127.0.0.1:10025", "--next-hop: mail would come back"),
    ],
)
@pytest.mark.parametrize("with_file", [True, False])
def test_mistakes_of_the_command_line(tmp_path, with_file, listen, next_hop, told):
    file = tmp_path / "some.yaml"
    file.write_text(listener())
    with pytest.raises(ConfigError) as caught:
        config.from_command_line(file if with_file else None, usual_state=tmp_path, listen=listen, next_hop=next_hop)
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("text", ["", "- 5", "listeners: 5", STATE + "listeners: [5]"])
def test_the_command_line_does_not_mend_a_bad_file(tmp_path, text):
    file = tmp_path / "some.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        config.from_command_line(file, usual_state=tmp_path, listen="smtp://127.0.0.1:9")


def test_the_command_line_is_for_one_listener(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text(listener("  - {listen: 'smtp://127.0.0.1:2', position: standalone, next_hop: 'lmtp:/x'}\n"))
    with pytest.raises(ConfigError, match="has 2 listeners: the option is for one"):
        config.from_command_line(file, usual_state=tmp_path, listen="smtp://127.0.0.1:9")


# ---- there and back


def test_what_is_in_force_can_be_read_again(load, tmp_path):
    for name in ("c.pem", "k.pem"):
        (tmp_path / name).write_text("secret")
    first = config.load(SHIPPED)
    rules = (Rule("spam", Action.TAG, 0.5, subject_prefix="[x] "), Rule("news", Action.REDIRECT, to="a@example.org"))
    one = replace(
        first.listeners[0],
        policy=Policy(rules, 1000, True, (), OnError.DEFER),
        limits=DoorLimits(message_bytes=1001, data_seconds=0.5),
        odd_bytes=OddBytes.REFUSE,
        tls=Certificate(tmp_path / "c.pem", tmp_path / "k.pem"),
        hostname="mx.example.org",
    )
    settings = replace(first, listeners=(one,), user="no", workers=3, history=History(1, 12345))
    for found in (first, settings):
        assert load(config.effective(found)) == found
    assert "secret" not in config.effective(settings)


@given(st.floats(0.001, 366 * 86400, allow_nan=False).map(lambda value: round(value, 3)))
@example(90.0)
@example(86400.0)
def test_durations_there_and_back(value):
    assert units.seconds(units.duration_text(value)) == pytest.approx(value, rel=1e-5)


@given(st.integers(1, 1 << 50))
@example(512 << 20)
@example(10**9)
def test_sizes_there_and_back(value):
    assert units.size(units.size_text(value)) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1B", 1), ("20MB", 20_000_000), ("20 mb", 20_000_000), ("512KiB", 512 << 10), ("1.5GiB", 3 << 29), ("2kB", 2000)]
)
def test_sizes(text, value):
    assert units.size(text) == value


@pytest.mark.parametrize(("text", "value"), [("30s", 30), ("10m", 600), ("1.5h", 5400), ("2d", 172800), ("0.5s", 0.5)])
def test_durations(text, value):
    assert units.seconds(text) == value


@pytest.mark.parametrize("given", ["", "5", 5, None, True, "5 x", "-5s", "5s5", "1e3s", "9999999d", [], {}, "٣s", "5s\n"])
def test_what_is_neither(given):
    for read in (units.seconds, units.size, units.days):
        with pytest.raises(ValueError, match="expected"):
            read(given)


KEYS = st.sampled_from([str(field.alias) for part in parts() for field in part.model_fields.values()])
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["smtp://127.0.0.1:1", "spam", "1s"])
)
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)


@given(st.dictionaries(KEYS, TREES, max_size=6))
def test_no_structure_gets_past_the_checks_or_breaks_them(tmp_path_factory, values):
    file = tmp_path_factory.getbasetemp() / f"any-{os.getpid()}.yaml"
    file.write_text(yaml.safe_dump(values))
    with suppress(ConfigError):
        assert isinstance(config.from_command_line(file, usual_state=Path("/x"), listen="smtp://127.0.0.1:1"), Settings)


@given(st.binary(max_size=200) | st.text("ab:-[]{}&*!|>'\"#%@`,? \n\t", max_size=100).map(str.encode))
def test_no_bytes_break_it(tmp_path_factory, raw):
    file = tmp_path_factory.getbasetemp() / f"raw-{os.getpid()}.yaml"
    file.write_bytes(raw)
    with pytest.raises(ConfigError):
        config.load(file)
