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

from spamguard.config.load import MAX_BYTES, load_settings
from spamguard.config.options import Settings
from spamguard.errors import ConfigError
from tests.support.certificates import needs_openssl, self_signed
from tests.unit.config.files import STATE, keys, listener

IN_A_LISTENER = {
    "    on_error: pas": "6:5 on_error",
    "workers: '5'": "6:1 workers",
    "    rules: [5]": "6:13 rules",
    "    clients: [192.0.2.1/24]": "6:15 clients",
    "    limits: {message_size: 5}": "6:14 message_size",
    "scoring: {deadline: 0s}": "6:11 deadline",
    "watch: [/var/vmail/%d/*/Maildir]": "6:9 watch",
    "watch:": "6:1 watch",
    "scoring:": "6:1 scoring",
    "workers:2": "6:1 is not YAML here",
    "user: 'x": "7:1 is not YAML here",
    "   workers: 2": "6:4 is not YAML here",
    "workres: 5": "6:1 unknown key 'workres'",
    "    rulez: []": "6:5 unknown key 'rulez'",
    "scoring: {zzz: 1}": "6:11 unknown key 'zzz'",
    "scoring: {scorers: 4}": "6:11 scorers: leave it out",
    "aliases: {'anna b': anna}": "6:11 anna b",
    "aliases: {anna: 'a b '}": "6:11 anna",
    "shared: {database: db1.example}": "6:10 database",
    "shared: {database: dbname=spamguard password=geheim}": "6:10 database",
    "shared: {database: 'postgresql://node:geheim@db1.example/spamguard'}": "6:10 database",
    "shared: {database: dbname=spamguard sslmode=require}": "6:10 database",
    "shared: {database: dbname=spamguard, tls: off}": "6:38 tls",
    "shared: {database: dbname=spamguard, url: 'http://mx1.example'}": "6:38 url",
    "shared: {database: dbname=spamguard, name: 7}": "6:38 name",
    "personal: 1": "6:1 personal",
    "teach: {spol: 1}": "6:9 unknown key 'spol'",
    "teach: {socket: /run/x.sock}": "6:9 unknown key 'socket'",
    "    teach: {addresses: {a@b.example: spam}, senders: [b.example]}": "6:55 senders",
    "    teach: {senders: ['*@b.example']}": "6:5 expected the key 'addresses'",
    "workers: many": "6:1 workers",
    "workers: true": "6:1 workers",
    "workers:": "6:1 workers",
    "user: a b": "6:1 user",
    "    tell_probability: yes": "6:5 tell_probability",
    "    spam_threshold: 1 in 1000": "6:5 spam_threshold",
    "    trusted: [x]": "6:15 trusted",
    "    hostname: a b": "6:5 hostname",
    "    limits: {recipients: 0}": "6:14 recipients",
    "    limits: {data_timeout: 9s}": "6:14 data_timeout: leave it out",
    "history: {subjects: false}": "6:11 unknown key 'subjects'",
    "history: {age: 36h}": "6:11 age",
    "watch: [Maildir]": "6:9 watch",
    "watch: [/home/../x]": "6:9 watch",
    "    teach: {addresses: {}, senders: ['*@a.example']}": "6:13 addresses",
    "watch: [{user: x}]": "6:9 expected the key 'maildir'",
    "watch: [{maildir: /x, folder: {}}]": "6:23 unknown key 'folder'",
    "watch: [{maildir: /x, ham_evidence: {answered: true}}]": "6:23 unknown key 'ham_evidence'",
    "watch: [{maildir: /x, answered_is_spam: true}]": "6:23 unknown key 'answered_is_spam'",
    "watch: [{maildir: /x, debounce: 2s}]": "6:23 unknown key 'debounce'",
    "user: a\nuser: b": "7:1 the key 'user'",
    "user: !!python/name:os.system x": "6:7 an alias or a tag",
    "? [a]\n: b": "6:3 expected a",
    "user: &a [*a]": "6:11 an alias or a tag",
    "metrics: localhost:9110": "6:1 metrics",
    "metrics: 127.0.0.1:0": "6:1 metrics",
    "web: {listen: '127.0.0.1:8080', hosts: ['a:80']}": "6:41 hosts",
    "web: {listen: '127.0.0.1:8080', hots: []}": "6:33 unknown key 'hots'",
    "password: geheim": "6:1 unknown key 'password'",
    "web: 8080": "6:1 web",
    "watch: [5]": "6:9 watch",
    "watch: [[x]]": "6:9 watch",
    "rules: []": "6:1 unknown key 'rules'",
    "    workers: 2": "6:5 unknown key 'workers'",
    "scoring: {message_size: 5}": "6:11 unknown key 'message_size'",
}
"""Where, and about what, a mistake is told of a text that follows a listener, from line 6 on."""
MISTAKES = {
    "- 1\n": "1:1 the file",
    listener(listen="smtp://localhost:25"): "3:5 listen",
    STATE + "scanners:\n  - listen: smtp://127.0.0.1:25\n": "3:5 listen",
    b"a: b\nc: \xff\n": "2:1 expected printable",
    b"a: b\nc: \x00\n": "2:1 expected printable",
    "[" * 50_000: "1:21 there are more than",
    "a: &a x\nb: [" + "*a, " * 17 + "]\n": "2:5 an alias",
    **{listener(f"{text}\n"): expected for text, expected in IN_A_LISTENER.items()},
    "": "1:1 expected the key 'state'",
    STATE + "listeners: []\n": "1:1 expected the key 'listeners'",
    listener(hop="{tls: required}"): "5:5 expected the key 'to'",
    listener(hop="smtp://x"): "5:5 next_hop",
    listener(hop="smtp://x:0"): "5:5 expected a",
    listener(position="nowhere"): "4:5 position",
    "state: var\n" + listener()[len(STATE) :]: "1:1 state",
    b"a: " + b"x" * MAX_BYTES: "1:1 the file",
    listener(hop="smtp://anna:geheim@mx.example:25"): "5:5 next_hop",
    listener(hop="26"): "5:5 next_hop",
}


def names(messages: Iterable[str]) -> list[str]:
    """Ids of tests."""
    return [re.sub(r"\W+", "-", message)[:70] for message in messages]


def scanner(more: str = "", listen: str = "rspamd://127.0.0.1:11333") -> str:
    return listener(f"scanners:\n  - listen: {listen}\n{more}")


def rule(text: str, position: str = "standalone") -> str:
    return listener(f"    rules:\n      - {{{text}}}\n", position=position)


CONTRADICTIONS = {
    scanner(listen="spamd://127.0.0.1:10025"): "7:5 another door",
    scanner("  - listen: rspamd://127.0.0.1:11333\n"): "8:5 another door",
    scanner(listen="spamd://0.0.0.0:783"): "7:5 spamd://0.0.0.0:783 can",
    scanner("    reject_from: 0.5\n"): "8:5 unknown key 'reject_from'",
    scanner(
        "    rules: [{when: unsure, from_probability: 0.5, action: defer}]\n",
        "spamd://127.0.0.1:783",
    ): "8:51 defer does nothing",
    scanner("    rules: [{when: spam, action: quarantine}]\n"): "8:26 quarantine does nothing",
    scanner(
        "    rules: [{when: spam, action: tag, subject_prefix: X}]\n"
    ): "8:39 subject_prefix is",
    rule("when: spam, action: redirect"): "7:22 redirect, and",
    rule("when: spam, action: reject, from_probability: 0.89"): "7:22 reject needs",
    rule(
        "when: spam, action: reject, from_probability: 0.95", position="after-queue"
    ): "7:22 reject is",
    rule(
        "when: spam, action: defer, from_probability: 0.5", position="after-queue"
    ): "7:22 defer is",
    rule("when: any, action: tag"): "7:10 when",
    rule("when: spam, action: reject"): "7:22 reject needs",
    rule("when: spam, action: defer"): "7:22 defer needs",
    listener(hop="smtp://127.0.0.1:10025"): "5:5 mail would come back",
    listener(hop="smtp://localhost:10025"): "5:5 mail would come back",
    listener(
        "    clients: [10.0.0.0/8]\n", listen="smtp://0.0.0.0:10025", hop="smtp://127.0.0.1:10025"
    ): "5:5 mail would come back",
    listener(listen="smtp://192.0.2.7:25"): "3:5 smtp://192.0.2.7:25 can",
    listener(
        "  - {listen: 'lmtp://127.0.0.1:10025', position: standalone, next_hop: 'lmtp:/x'}\n"
    ): "6:6 another door",
    listener("web: 192.0.2.1:8080\n"): "6:1 192.0.2.1:8080 can",
    listener(
        "web: {listen: '0.0.0.0:80', tls: {certificate: /dev/null, key: /dev/null}}\n"
    ): "6:7 say by",
    listener("web: {listen: '127.0.0.1:80', proxy: {networks: [127.0.0.1/32]}}\n"): "6:7 say by",
    listener(
        "web: {listen: '127.0.0.1:80', hosts: [a], proxy: {networks: [127.0.0.1/32], "
        "operators: [anna]}}\n"
    ): "6:77 nobody is",
    f"{STATE}scanners: [{{listen: 'spamd://127.0.0.1:783'}}]\n"
    "web: {listen: '127.0.0.1:80', mail_from: a@example.org}\n": "3:31 mail needs",
    listener("web: {listen: '127.0.0.1:80', digest: daily}\n"): "6:31 say who",
    listener("    tls: {certificate: /nowhere.pem, key: /dev/null}\n"): "6:11 certificate",
    **{
        listener(
            f"web: {{listen: '127.0.0.1:80', hosts: [a], proxy: {{networks: "
            f"[127.0.0.1/32], path: '{path}'}}}}\n"
        ): "6:77 path"
        for path in ("spam", "/spam/", "//evil.example", "/..", "/a b", '/a"b', "/\u00e4")
    },
}


@pytest.mark.parametrize(
    ("text", "expected"),
    (MISTAKES | CONTRADICTIONS).items(),
    ids=names((MISTAKES | CONTRADICTIONS).values()),
)
def test_a_mistake_is_reported_with_line_and_column(mistakes, text, expected):
    told = mistakes(text)
    assert len(told) == len(expected.splitlines())
    for mistake, words in zip(told, expected.splitlines(), strict=True):
        place, word = words.split(" ", 1)
        assert mistake.startswith(f"{place}: ")
        assert word in mistake
        assert "geheim" not in mistake


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


KEYS = st.sampled_from(keys())
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
            load_settings(file, usual_state=Path("/x")),
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
