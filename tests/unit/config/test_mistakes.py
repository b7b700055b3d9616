"""Every mistake is told where it is, all at once, and nothing that a file holds does harm."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spamguard.config.load import MAX_BYTES, load_settings, settings_from_command_line
from spamguard.config.options import Settings
from spamguard.config.schema import FILE_PART
from spamguard.errors import ConfigError
from tests.support.certificates import needs_openssl, self_signed
from tests.unit.config.files import STATE, listener, parts

_MAILDIR = (
    "expected the absolute path of a Maildir, * standing for any name, such as /home/*/Maildir"
)
_PLACE = "expected ADDRESS:PORT with an IP address, such as 127.0.0.1:9110 or [::1]:9110"
_HOP = "expected smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path"
_MAPPING = "expected a mapping as in"
_NOT_YAML = "is not YAML here:"
_CHECK = ": check indentation and quotes"
_DURATION = "expected a duration such as 30s, 10m, 2h or 1d"
KEYS_OF_FILE = list(FILE_PART.model_fields)
IN_A_LISTENER = {
    "    on_error: pas": "6:5: on_error: expected one of pass, defer, found 'pas'",
    "workers: '5'": "6:1: workers: expected a whole number from 0 to 1,024, found '5'",
    "    rules: [5]": f"6:13: rules: {_MAPPING} {{when: …, action: …}}, found 5",
    "    clients: [192.0.2.1/24]": (
        "6:15: clients: expected a network such as 192.0.2.0/24 or 2001:db8::/32, found "
        "'192.0.2.1/24'"
    ),
    "    limits: {message_size: 5}": (
        "6:14: message_size: expected a size such as 512KiB, 20MB or 1GiB, found 5"
    ),
    "scoring: {deadline: 0s}": f"6:11: deadline: {_DURATION}, found '0s'",
    "watch: [/var/vmail/%d/*/Maildir]": (
        f"6:9: watch: {_MAILDIR}, found '/var/vmail/%d/*/Maildir'"
    ),
    "watch:": "6:1: watch: expected a list as in [a, b], found nothing",
    "scoring:": f"6:1: scoring: {_MAPPING} {{key: …}}, found nothing",
    "workers:2": f"6:1: {_NOT_YAML} could not find expected ':'{_CHECK}",
    "user: 'x": f"7:1: {_NOT_YAML} found unexpected end of stream{_CHECK}",
    "   workers: 2": (
        f"6:4: {_NOT_YAML} expected <block end>, but found '<block mapping start>'{_CHECK}"
    ),
    "workres: 5": "6:1: unknown key 'workres': did you mean 'workers'?",
    "    rulez: []": "6:5: unknown key 'rulez': did you mean 'rules'?",
    "scoring: {zzz: 1}": "6:11: unknown key 'zzz': expected one of deadline",
    "scoring: {scorers: 4}": "6:11: scorers is gone: raise workers",
    "aliases: {'anna b': anna}": (
        "6:11: anna b: expected an address, *@example.org for all of a domain, or what stands "
        "before the @, found 'anna b'"
    ),
    "aliases: {anna: 'a b '}": "6:11: anna: expected the name of a user of mail, found 'a b '",
    "shared: {database: db1.example}": (
        "6:10: database: expected a connection string such as 'host=db.example dbname=spamguard "
        "user=spamguard_node', found 'db1.example'"
    ),
    "shared: {database: dbname=spamguard password=geheim}": (
        "6:10: database: expected no password here: use password_file and tls, or leave it out"
    ),
    "shared: {database: 'postgresql://node:geheim@db1.example/spamguard'}": (
        "6:10: database: expected no password here: use password_file and tls, or leave it out"
    ),
    "shared: {database: dbname=spamguard sslmode=require}": (
        "6:10: database: expected no sslmode here: use password_file and tls, or leave it out"
    ),
    "shared: {database: dbname=spamguard, tls: off}": (
        "6:38: tls: expected verify, no or {ca: FILE}, found 'off'"
    ),
    "shared: {database: dbname=spamguard, url: 'http://mx1.example'}": (
        "6:38: url: expected the page's address on this node, such as https://mx1.example:8443, "
        "found 'http://mx1.example'"
    ),
    "shared: {database: dbname=spamguard, name: 7}": (
        "6:38: name: expected at most 60 printable characters such as mx1, found 7"
    ),
    "personal: 1": "6:1: personal: expected true or false, found 1",
    "teach: {spol: 1}": "6:9: unknown key 'spol': did you mean 'spool'?",
    "teach: {socket: /run/x.sock}": (
        "6:9: socket is gone: leave it out, programs leave lessons in the directory `spool`"
    ),
    "    teach: {addresses: {a@b.example: spam}, senders: [b.example]}": (
        "6:55: senders: expected an address such as anna@example.org, or *@example.org for all of "
        "a domain, found 'b.example'"
    ),
    "    teach: {senders: ['*@b.example']}": "6:5: expected the key 'addresses'",
    "workers: many": "6:1: workers: expected a whole number from 0 to 1,024, found 'many'",
    "workers: true": "6:1: workers: expected a whole number from 0 to 1,024, found true",
    "workers:": "6:1: workers: expected a whole number from 0 to 1,024, found nothing",
    "user: a b": "6:1: user: expected the name of a user, found 'a b'",
    "    tell_probability: yes": "6:5: tell_probability: expected true or false, found 'yes'",
    "    spam_threshold: 1 in 1000": (
        "6:5: spam_threshold: expected a probability from 0.5 to 0.999999 such as 0.95, "
        "found '1 in 1000'"
    ),
    "    trusted: [x]": (
        "6:15: trusted: expected a network such as 192.0.2.0/24 or 2001:db8::/32, found 'x'"
    ),
    "    hostname: a b": "6:5: hostname: expected a host name, found 'a b'",
    "    limits: {recipients: 0}": (
        "6:14: recipients: expected a whole number from 1 to 1,000,000, found 0"
    ),
    "    limits: {data_timeout: 9s}": (
        "6:14: data_timeout is gone: leave it out, it cannot be changed"
    ),
    "history: {subjects: false}": (
        "6:11: subjects is gone: write private: true to keep neither subjects nor addresses"
    ),
    "history: {age: 36h}": "6:11: age: expected whole days such as 30d, found 36h",
    "watch: [Maildir]": f"6:9: watch: {_MAILDIR}, found 'Maildir'",
    "watch: [/home/../x]": f"6:9: watch: {_MAILDIR}, found '/home/../x'",
    "    teach: {addresses: {}, senders: ['*@a.example']}": (
        "6:13: addresses: expected at least one, found none"
    ),
    "watch: [{user: x}]": "6:9: expected the key 'maildir'",
    "watch: [{maildir: /x, folder: {}}]": "6:23: unknown key 'folder': did you mean 'folders'?",
    "watch: [{maildir: /x, ham_evidence: {answered: true}}]": (
        "6:23: ham_evidence is gone: write answered_is_ham: true and flagged_is_ham: true; reading "
        "teaches nothing any more"
    ),
    "watch: [{maildir: /x, answered_is_spam: true}]": (
        "6:23: unknown key 'answered_is_spam': did you mean 'answered_is_ham'?"
    ),
    "watch: [{maildir: /x, debounce: 2s}]": (
        "6:23: debounce is gone: leave it out, a change is scanned after a second"
    ),
    "user: a\nuser: b": "7:1: the key 'user' is there twice",
    "user: !!python/name:os.system x": (
        "6:7: the tag 'tag:yaml.org,2002:python/name:os.system' has no meaning here: leave it out"
    ),
    "? [a]\n: b": "6:3: expected a word as key",
    "user: &a [*a]": "6:7: an alias stands inside what it names",
    "metrics: localhost:9110": f"6:1: metrics: {_PLACE}, found 'localhost:9110'",
    "metrics: 127.0.0.1:0": f"6:1: metrics: {_PLACE}, found '127.0.0.1:0'",
    "web: {listen: '127.0.0.1:8080', hosts: ['a:80']}": (
        "6:41: hosts: expected a host name or an IP address, without a port, found 'a:80'"
    ),
    "web: {listen: '127.0.0.1:8080', hots: []}": "6:33: unknown key 'hots': did you mean 'hosts'?",
    "password: geheim": "6:1: unknown key 'password': expected one of " + ", ".join(KEYS_OF_FILE),
    "web: 8080": f"6:1: web: {_PLACE}, found 8080",
    "watch: [5]": f"6:9: watch: {_MAILDIR}, found 5",
    "rules: []": "6:1: unknown key 'rules' here: it stands in listeners or in scanners",
    "    workers: 2": "6:5: unknown key 'workers' here: it stands at the top level",
    "scoring: {message_size: 5}": "6:11: unknown key 'message_size' here: it stands in limits",
}
"""What is wrong with the text when it follows a listener, from line 6 on."""
MISTAKES = {
    "- 1\n": f"1:1: the file: {_MAPPING} {{key: …}}, found a list",
    listener(listen="smtp://localhost:25"): (
        "3:5: listen: expected PROTOCOL://ADDRESS:PORT with an IP address, found "
        "'smtp://localhost:25'"
    ),
    STATE + "scanners:\n  - listen: smtp://127.0.0.1:25\n": (
        "3:5: listen: expected rspamd://HOST:PORT, spamd://HOST:PORT, milter://HOST:PORT or "
        "milter:/path/to/socket, found 'smtp://127.0.0.1:25'"
    ),
    b"a: b\nc: \xff\n": "2:1: expected printable text in UTF-8: save it so",
    b"a: b\nc: \x00\n": "2:1: expected printable text in UTF-8: save it so",
    "[" * 50_000: f"1:21: {_NOT_YAML} more than 20 levels or 16 aliases{_CHECK}",
    "a: &a x\nb: [" + "*a, " * 17 + "]\n": (
        f"2:69: {_NOT_YAML} more than 20 levels or 16 aliases{_CHECK}"
    ),
    **{listener(f"{text}\n"): expected for text, expected in IN_A_LISTENER.items()},
    "": (
        "1:1: expected the key 'listeners', or 'scanners'\n"
        "1:1: expected the key 'state', the directory of the filter"
    ),
    STATE + "listeners: []\n": "1:1: expected the key 'listeners', or 'scanners'",
    listener(f"watch_socket: /{'x' * 90}\n"): (
        f"6:1: watch_socket: expected an absolute path of at most 80 bytes, found '/{'x' * 56}…'"
    ),
    listener(hop="{tls: required}"): "5:5: expected the key 'to'",
    listener(hop="smtp://x"): f"5:5: next_hop: {_HOP}, found 'smtp://x'",
    listener(hop="smtp://x:0"): "5:5: expected a port from 1 to 65535",
    listener(position="nowhere"): (
        "4:5: position: expected one of before-queue, after-queue, standalone, found 'nowhere'"
    ),
    "state: var\n" + listener()[len(STATE) :]: "1:1: state: expected an absolute path, found 'var'",
    b"a: " + b"x" * MAX_BYTES: "1:1: the file is larger than 1,000,000 bytes",
    listener(hop="smtp://anna:geheim@mx.example:25"): (
        f"5:5: next_hop: {_HOP}, found 'smtp://…@mx.example:25'"
    ),
    listener(hop="26"): f"5:5: next_hop: {_HOP}, found 26",
}


def names(messages: Iterable[str]) -> list[str]:
    """Ids of tests."""
    return [re.sub(r"\W+", "-", message)[:70] for message in messages]


@pytest.mark.parametrize(("text", "expected"), MISTAKES.items(), ids=names(MISTAKES.values()))
def test_a_mistake_is_reported_with_line_and_column(mistakes, text, expected):
    assert mistakes(text) == expected.splitlines()


def scanner(more: str = "", listen: str = "rspamd://127.0.0.1:11333") -> str:
    return listener(f"scanners:\n  - listen: {listen}\n{more}")


def rule(text: str, position: str = "standalone") -> str:
    return listener(f"    rules:\n      - {{{text}}}\n", position=position)


CONTRADICTIONS = {
    scanner(listen="spamd://127.0.0.1:10025"): "7:5: another door listens there already",
    scanner("  - listen: rspamd://127.0.0.1:11333\n"): "8:5: another door listens there already",
    scanner(listen="spamd://0.0.0.0:783"): (
        "7:5: spamd://0.0.0.0:783 can be reached from other machines: list the networks that may "
        "connect, as in clients: [192.0.2.0/24]"
    ),
    scanner("    reject_from: 0.5\n"): (
        "8:5: reject_from is gone: write rules: [{when: spam, from_probability: 0.99, action: "
        "reject}]"
    ),
    scanner(
        "    rules: [{when: unsure, from_probability: 0.5, action: defer}]\n",
        "spamd://127.0.0.1:783",
    ): "8:51: spamd has no words for that: leave the rule out",
    scanner("    rules: [{when: spam, action: quarantine}]\n"): (
        "8:26: rspamd has no words for that: leave the rule out"
    ),
    scanner("    rules: [{when: spam, action: tag, subject_prefix: X}]\n"): (
        "8:26: rspamd has no words for that: leave the rule out"
    ),
    scanner("    teachers: [127.0.0.1]\n", "milter:/run/m.sock"): (
        "8:5: nobody can teach by milter: leave it out"
    ),
    rule("when: spam, action: redirect"): (
        "7:22: redirect, and it alone, needs an address, as in to: held@example.org"
    ),
    rule("when: spam, action: reject, from_probability: 0.89"): (
        "7:22: reject needs a from_probability of 0.9 or more"
    ),
    rule("when: spam, action: reject, from_probability: 0.95", position="after-queue"): (
        "7:22: reject is for before-queue and standalone: after the queue Postfix would bounce to "
        "forged senders"
    ),
    rule("when: spam, action: defer, from_probability: 0.5", position="after-queue"): (
        "7:22: defer is for before-queue and standalone: after the queue Postfix would bounce to "
        "forged senders"
    ),
    rule("when: any, action: tag"): (
        "7:10: when: expected the name of a class, spam or unsure, found 'any'"
    ),
    rule("when: spam, action: reject"): "7:22: reject needs a from_probability of 0.9 or more",
    rule("when: spam, action: defer"): "7:22: defer needs a from_probability above 0",
    listener(hop="smtp://127.0.0.1:10025"): (
        "5:5: mail would come back: smtp://127.0.0.1:10025 is where this daemon listens"
    ),
    listener(hop="smtp://localhost:10025"): (
        "5:5: mail would come back: smtp://localhost:10025 is where this daemon listens"
    ),
    listener(
        "    clients: [10.0.0.0/8]\n", listen="smtp://0.0.0.0:10025", hop="smtp://127.0.0.1:10025"
    ): ("5:5: mail would come back: smtp://127.0.0.1:10025 is where this daemon listens"),
    listener(listen="smtp://192.0.2.7:25"): (
        "3:5: smtp://192.0.2.7:25 can be reached from other machines: list the networks that may "
        "connect, as in clients: [192.0.2.0/24]"
    ),
    listener(
        "  - {listen: 'lmtp://127.0.0.1:10025', position: standalone, next_hop: 'lmtp:/x'}\n"
    ): ("6:6: another door listens there already"),
    listener("web: 192.0.2.1:8080\n"): (
        "6:1: 192.0.2.1:8080 can be reached from other machines: give it a certificate with tls, "
        "or name the reverse proxy with proxy"
    ),
    listener("web: {listen: '0.0.0.0:80', tls: {certificate: /dev/null, key: /dev/null}}\n"): (
        "6:7: say by which names it is asked for, as in hosts: [spam.example.org]: others are "
        "refused"
    ),
    listener("web: {listen: '127.0.0.1:80', proxy: {networks: [127.0.0.1/32]}}\n"): (
        "6:7: say by which names it is asked for, as in hosts: [spam.example.org]: others are "
        "refused"
    ),
    listener(
        "web: {listen: '127.0.0.1:80', hosts: [a], proxy: {networks: [127.0.0.1/32], "
        "operators: [anna]}}\n"
    ): ("6:77: nobody is named without user_header"),
    f"{STATE}scanners: [{{listen: 'spamd://127.0.0.1:783'}}]\n"
    "web: {listen: '127.0.0.1:80', mail_from: a@example.org}\n": (
        "3:31: mail needs the next hop of a listener, and there is none"
    ),
    listener("web: {listen: '127.0.0.1:80', digest: daily}\n"): (
        "6:31: say who sends it, as in mail_from: spamguard@example.org"
    ),
    listener("    tls: {certificate: /nowhere.pem, key: /dev/null}\n"): (
        "6:11: certificate: expected a file that can be read, found '/nowhere.pem' (No such file "
        "or directory)"
    ),
    **{
        listener(
            f"web: {{listen: '127.0.0.1:80', hosts: [a], proxy: {{networks: "
            f"[127.0.0.1/32], path: '{path}'}}}}\n"
        ): f"6:77: path: expected a path such as /spam, without / at its end, found {path!r}"
        for path in ("spam", "/spam/", "//evil.example", "/..", "/a b", '/a"b', "/\u00e4")
    },
}


@pytest.mark.parametrize(
    ("text", "expected"), CONTRADICTIONS.items(), ids=names(CONTRADICTIONS.values())
)
def test_contradictions_are_reported(mistakes, text, expected):
    assert mistakes(text) == [expected]


@needs_openssl
@pytest.mark.parametrize(
    ("certificate", "key"),
    [
        ("one/localhost.pem", "other/localhost.key"),
        ("one/localhost.pem", "locked.key"),
        ("rubbish.pem", "one/localhost.key"),
    ],
)
def test_a_certificate_and_its_key_belong_together(
    tmp_path: Path, mistakes: Any, certificate: str, key: str
) -> None:
    """Workers cannot begin with others, so the old settings are to stay in force."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        self_signed(tmp_path / name)
    locked = [
        "openssl",
        "ec",
        "-aes128",
        "-passout",
        "pass:secret",
        "-in",
        str(tmp_path / "one/localhost.key"),
        "-out",
    ]
    subprocess.run([*locked, str(tmp_path / "locked.key")], check=True, capture_output=True)
    (tmp_path / "rubbish.pem").write_text("x")
    told = "tls: expected a certificate and its key, without a password, in PEM files"
    assert mistakes(
        listener(f"    tls: {{certificate: {tmp_path}/{certificate}, key: {tmp_path}/{key}}}\n")
    ) == [f"6:5: {told}"]
    text = (
        f"{STATE}web: {{listen: '127.0.0.1:80', tls: {{certificate: {tmp_path}/{certificate}, "
        f"key: {tmp_path}/{key}}}}}\nscanners: []\n"
    )
    assert any(mistake.endswith(told) for mistake in mistakes(text))


KEYS = st.sampled_from([key for part in parts() for key in part.model_fields])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["smtp://127.0.0.1:1", "spam", "1s"])
)
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.dictionaries(KEYS, TREES, max_size=6))
def test_no_structure_gets_past_the_checks_or_breaks_them(tmp_path_factory, values):
    file = tmp_path_factory.getbasetemp() / f"any-{os.getpid()}.yaml"
    file.write_text(yaml.safe_dump(values))
    with suppress(ConfigError):
        assert isinstance(
            settings_from_command_line(file, usual_state=Path("/x"), listen="smtp://127.0.0.1:1"),
            Settings,
        )


@given(
    st.binary(max_size=200)
    | st.text("ab:-[]{}&*!|>'\"#%@`,? \n\t\r\x85\u2028\u00a0\ufeff", max_size=100).map(str.encode)
)
def test_no_bytes_break_it(tmp_path_factory, raw):
    file = tmp_path_factory.getbasetemp() / f"raw-{os.getpid()}.yaml"
    file.write_bytes(raw)
    with pytest.raises(ConfigError):
        load_settings(file)
