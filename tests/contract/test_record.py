"""What a change of form must not change: a record of what the program does, and a test that
compares.

The record (`record/`, a file for each subject) holds verdicts on made-up mail after several courses
of lessons, with hashes of their bits, hashes of features and of settled tables, header fields, exit
statuses, and the names and types of commands, options, configuration, API and metrics. Prose is no
part of it.

The program is reached only as its users reach it: as a command, as `spamguard.Filter`, over HTTP
and SMTP. So this file need not change when modules, classes and functions move. Two things have no
public way and are read from the state directory instead: `receipts` and `tables` below.

    python tests/contract/test_record.py --write     writes the record anew

The bits were the same with and without the CPU's vector instructions. Should another numpy or libm
round differently, write the record anew from the version before the change, then compare.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import re
import runpy
import shutil
import smtplib
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from spamguard.engine.filter import Filter

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # `--write` runs this file as a script

from corpora.synthetic import generate  # noqa: E402  needs the path, like the next two
from tests.support.archives import unpack  # noqa: E402
from tests.support.waiting import COMMAND_SECONDS, PATIENCE, eventually  # noqa: E402

RECORD = Path(__file__).with_name("record")
WRITE = "python tests/contract/test_record.py --write"
SHARED = ROOT.parent / "shared"
CORPUS = SHARED / "corpora" / "spamassassin.tar.xz"
CORPUS_MESSAGES = 2000
NATIVE_SWITCH = "SPAMGUARD_KERNEL"  # "numpy": judge and teach without the compiled functions
KEY = b"the key of all filters in tests!"
BITS = 14  # few buckets, so that tokens collide and tables grow
TAUGHT = 210
HELD_OUT = 24
CLIENT = "client.example"  # in a field that is judged: it must not be this machine's name

Json = dict[str, Any]


# ---- the program


def environment(native: str = "compiled") -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SPAMGUARD_")}
    more = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "2000"}
    return {**kept, **more, **({} if native == "compiled" else {NATIVE_SWITCH: native})}


def spamguard(*words: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "spamguard", *map(str, words)]
    return subprocess.run(
        line,
        input=data,
        capture_output=True,
        env=environment(),
        timeout=COMMAND_SECONDS,
        check=False,
    )


def answer(*words: str | Path) -> str:
    """The output of a command that succeeds."""
    done = spamguard(*words)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def run_here(*words: str | Path) -> tuple[int, str]:
    """Exit status and output of a command, run in this process. That is quicker than a process for
    each command, and uses the functions that this process was told to use.
    """
    before, output = sys.argv, io.StringIO()
    sys.argv = ["spamguard", *map(str, words)]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            runpy.run_module("spamguard", run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0), output.getvalue().strip()
    finally:
        sys.argv = before
    raise AssertionError("a command ends the process")


def output_here(*words: str | Path, status: int = 0) -> str:
    """The output of a command that ends with this status."""
    ended, output = run_here(*words)
    assert ended == status, output
    return output


def new_state(place: Path) -> Path:
    """A state directory with a known key. (There is no public way to choose one.)"""
    place.mkdir(mode=0o700)
    (place / "key").touch(0o600)
    (place / "key").write_bytes(KEY)
    return place


def receipts(state: Path) -> list[str]:
    """Of each 25 lessons, in order: users and classes, and hashes of the messages' digests, of what
    was counted of them, and of each expert's scores before the lesson. (No public way.)
    """
    with contextlib.closing(sqlite3.connect(state / "ledger.sqlite")) as db:
        query = "SELECT user, label, digest, packed, scores FROM events ORDER BY seq"
        rows = db.execute(query).fetchall()
    found = []
    for start in range(0, len(rows), 25):
        part = rows[start : start + 25]
        who = [f"{user or '-'}:{label or 'forgotten'}" for user, label, *_ in part]
        columns = list(zip(*part, strict=True))[2:]
        found.append(" ".join([*who, *(short_all(map(short, column)) for column in columns)]))
    return found


def tables(state: Path) -> list[str]:
    """Kind, shape and hash of each array of the tables. (No public way: a file of a line, a head in
    JSON, and arrays on pages of 4,096 bytes.)"""
    (file,) = state.glob("tables-*.bin")
    data = file.read_bytes()
    length = len(data.split(b"\n", 2)[0]) + 1 + len(data.split(b"\n", 2)[1]) + 1
    head = json.loads(data.split(b"\n", 2)[1].partition(b" ")[2])
    first = -(-length // 4096) * 4096
    arrays = {}
    for name, kind, shape, start in head["arrays"]:
        size = int(kind[2:]) * math.prod(shape)
        arrays[name] = np.frombuffer(data[first + start :][:size], kind).reshape(shape)
    blocks = arrays.pop("blocks")
    each = (1 << head["bits"]) // len(blocks)
    found = [" ".join(head["classes"])]
    for name, array in arrays.items():
        if name == "rows" or name.startswith("column "):  # of all buckets
            width = array.shape[1]
            arrays[name] = array.reshape(-1, each, width)[blocks].reshape(-1, width)
    shown = arrays.values()
    found += [f"{each.dtype.str} {list(each.shape)} {short(each.tobytes())}" for each in shown]
    return found


# ---- mail


def short(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def short_all(texts: Iterable[str]) -> str:
    return short("\n".join(texts).encode())


def odd_mail() -> list[bytes]:
    """Messages that are damaged, deep, disguised, or in a charset that does not fit."""
    html = (
        b"<p style='color:#fff'>hidden ham</p><a "
        b"href='http://a.example@203.0.113.9/x'>Cl&#105;ck</a>"
    )
    deep = b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n"
    nested = b"".join(deep % (depth, depth) for depth in range(60))
    return [
        b"",
        b"\n",
        b"no header at all, just a text\nwith two lines",
        b"Subject: only a header",
        (b"Subject: =?utf-8?B?!!!!?= =?x-none?Q?=FF=?=\nFrom: <<>>\n\n"
b"body\x00with\x00nulls\r\n.\r\n"),
        (b"Subject: bytes \xff\xfe\nContent-Type: text/plain; charset=no-such\n\n"
b"\xe4\xf6\xfc \xa4\n"),
        b"Content-Type: text/html; charset=utf-8\n\n" + html * 3 + b"<!-- <b>not closed",
        b"Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\nSGVsbG8gd29ybGQ===!?x\n",
        b"Content-Transfer-Encoding: quoted-printable\n\nV=49=41GRA ch=\neap =ZZ = \nend",
        b"Content-Type: multipart/alternative; boundary=x\n\n--x\n\nplain\n--x\n"
        b"Content-Type: text/html\n\n<h1>other <i>words</i></h1>\n",
        nested + b"\nthe innermost text\n",
        ("Subject: \u0421heap \u0440ills\n\nV.1.A.G.R.A f\u200bree m\u00f8ney "
"\U0001d5d7\U0001d5f2\n").encode(),
        b"Content-Type: message/rfc822\n\nSubject: inner\nContent-Type: text/plain\n\ninner text\n",
        (b"Content-Type: application/zip; name=\"a.pdf.exe\"\n"
b"Content-Disposition: attachment\n\nPK\x03\x04"),
        b"X-Spam-Status: No, score=-99\nX-Spamguard: ham; id=forged\nX-Folded: a\n\tb\n  c\n"
        + b"X-Many: y\n" * 300
        + b"\n"
        + b"word " * 20000,
        ("Subject: \u6b63\u898f\u54c1 \u6fc0\u5b89\n\n"
"\u7121\u6599\u3067\u8cc7\u6599\u3092\u304a\u9001\u308a\u3057\u307e\u3059\n").encode(),
    ]  # fmt: skip


def bits(verdict: Any) -> str:
    """A verdict as text: label, the exact log-odds, and a hash of all its probabilities."""
    classes = sorted((name, float(p).hex()) for name, p in verdict.probabilities.items())
    rest = short(json.dumps([float(verdict.probability).hex(), classes]).encode())
    return f"{verdict.label} {float(verdict.log_odds).hex()} {rest}"


# ---- sections of the record: verdicts, receipts, tables, words


def play(state: Path) -> Json:
    """Teach a new filter in several stages and judge at each. Runs in a process of its own, which
    was started with or without the compiled functions (`played`)."""
    mail = list(generate(TAUGHT + HELD_OUT, 7))
    lessons = mail[:TAUGHT]
    unseen = [raw for _, raw in mail[TAUGHT:]] + odd_mail()
    stages: dict[str, list[str]] = {}

    def judged(subject: Filter, user: str = "") -> list[str]:
        return [bits(subject.judge(raw, user=user)) for raw in unseen]

    def other(label: str) -> str:
        return "ham" if label == "spam" else "spam"

    new_state(state)
    with Filter.open(state, _bits=BITS, _durable=False) as subject:
        stages["empty"] = judged(subject)
        stages["online"] = []
        for number, (label, raw) in enumerate(lessons, 1):
            stages["online"].append(bits(subject.judge(raw)))
            assert subject.learn(raw, label)
            if number in (6, 40, TAUGHT):
                stages[f"{number} lessons"] = judged(subject)
        assert not subject.learn(lessons[0][1], lessons[0][0]), "a second time changes nothing"
        assert [bits(verdict) for verdict in subject.judge_all(unseen)] == judged(subject)
        for label, raw in lessons[20:32]:
            subject.learn(raw, other(label))
        stages["corrected"] = judged(subject)
        for _, raw in lessons[100:130]:
            assert subject.forget(raw)
        stages["forgotten"] = judged(subject)
        for label, raw in lessons[40:60]:
            subject.learn(raw, other(label), user="anna")
        for label, raw in lessons[44:50]:
            subject.learn(raw, other(label), user="ben")
        for user in ("", "anna", "ben", "nobody"):
            stages[f"with votes, for {user or 'all'}"] = judged(subject, user)
        for raw, label in zip(odd_mail(), itertools.cycle(("ham", "spam"))):
            subject.learn(raw, label)
        for label, raw in lessons[130:160]:
            subject.learn(raw, "phish" if label == "spam" else "newsletter")
        stages["four classes"] = judged(subject)
    _more_unwanted(state, lessons[160][1])
    output_here("--state", state, "rebuild")
    with Filter.open(state, _durable=False) as subject:
        stages["settled"] = judged(subject)
        stages["settled, for anna"] = judged(subject, "anna")
    for profile in ("bernoulli", "multinomial"):
        with Filter.open(state, profile=profile, _durable=False) as subject:
            stages[profile] = judged(subject)
    return {
        "native": json.loads(output_here("--state", state, "status", "--json"))[
            "kernel"
        ],  # compiled, or numpy
        "verdicts": {name: _condense(verdicts) for name, verdicts in stages.items()},
        "labels": [verdict.split()[0] for verdict in stages["settled"]],
        "receipts": receipts(state),
        "tables": tables(state),
        "words": _words(state, unseen[:3]),
    }


def _condense(verdicts: Sequence[str]) -> str:
    """The first letter of each label, and a hash of all bits."""
    return "".join(verdict[0] for verdict in verdicts) + " " + short_all(verdicts)


def _more_unwanted(state: Path, raw: bytes) -> None:
    """Make one more class, of unwanted mail."""
    file = state.with_name(f"{state.name}.eml")
    file.write_bytes(raw)
    output_here("--state", state, "learn", "--as", "scam", "--unwanted", "--new", file)


def _words(state: Path, messages: Sequence[bytes]) -> list[list[str]]:
    """The strongest words of messages, with their exact parts."""
    files = [state.with_name(f"{state.name}.{number}.eml") for number in range(len(messages))]
    for file, raw in zip(files, messages, strict=True):
        file.write_bytes(raw)
    told = output_here("--state", state, "explain", "--json", "--words", "30", *files)
    explained = [json.loads(line) for line in told.splitlines()]
    return [
        [f"{float(word['part']).hex()} {word['text']}" for word in one["words"]]
        for one in explained
    ]


def played(state: Path, native: str) -> Json:
    """The same, with the compiled functions or without them."""
    line = [sys.executable, str(Path(__file__)), "--play", str(state)]
    done = subprocess.run(
        line, capture_output=True, env=environment(native), timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: Json = json.loads(done.stdout)
    return answer


# ---- section: header fields


def masked(raw: bytes) -> list[str]:
    """Our header fields, without the parts that differ between runs."""
    head = raw.replace(b"\r\n", b"\n").partition(b"\n\n")[0].decode("latin-1")
    lines = [line for line in head.split("\n") if line.lower().startswith("x-spam")]
    return [re.sub(r"\b(id|s|reason)=[\w-]+", r"\1=…", line) for line in lines]


def headers(state: Path) -> Json:
    """The header fields that `spamguard filter` adds, and a hash of the rest of its output."""
    known = [raw for _, raw in generate(4, 7)]
    forged = (
        b"X-Spam-Flag: YES\nX-Spamguard: ham; id=a; s=b\nSubject: forged\nX-Bogosity: Spam\n\n"
        b"Hello\n"
    )
    cases = {f"{number}": raw for number, raw in enumerate([*known, odd_mail()[0]])}
    cases |= {"forged": forged, "crlf": forged.replace(b"\n", b"\r\n")}
    fields: Json = {}
    for name, raw in cases.items():
        done = spamguard("--state", state, "filter", data=raw)
        rest = re.sub(rb"(?m)^X-Spam.*\r?\n", b"", done.stdout)
        fields[name] = [done.returncode, *masked(done.stdout), short(rest)]
    done = spamguard(
        "--state", state / "key", "filter", data=b"Subject: x\n\nNobody can judge this.\n"
    )
    fields["no filter"] = [done.returncode, *masked(done.stdout)]
    return fields


# ---- section: exit statuses


def statuses(state: Path, labels: Sequence[str], place: Path) -> dict[str, int]:
    """The exit status of commands, on a copy of a state directory."""
    shutil.copytree(state, place / "state")
    unseen = [raw for _, raw in list(generate(TAUGHT + HELD_OUT, 7))[TAUGHT:]] + odd_mail()
    for label in ("ham", "spam", "unsure"):
        number = next(at for at, one in enumerate(labels) if one == label)
        (place / label).write_bytes(unseen[number])
    texts = {
        "bad.yaml": "listeners: [{listen: nowhere, colour: red}]\nstat: /x\n",
        "broken.yaml": "listeners: [\n",
        "good.yaml": f"state: {place}/state\nlisteners:\n  - listen: smtp://127.0.0.1:10025\n"
        "    position: after-queue\n    next_hop: smtp://127.0.0.1:10026\n",
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    shutil.copytree(state, place / "damaged")
    (place / "damaged" / "ledger.sqlite").write_bytes(b"no ledger" * 1000)
    return _statuses(place)


CASES = (
    "",
    "lern",
    "judge ham",
    "judge spam",
    "judge unsure",
    "judge unsure spam",
    "judge ham unsure",
    "judge missing",
    "--state damaged judge ham",
    "--state good.yaml status",
    "--profile nonsense judge ham",
    "--profile bernoulli explain ham",
    "learn ham",
    "learn --as HAM! ham",
    "learn --as spma ham",
    "forget ham",
    "explain 0iq5r8jo4c1n2f3g",
    "check good.yaml",
    "check bad.yaml",
    "check broken.yaml",
    "check missing",
    "run --config bad.yaml",
    "open-mailboxes --config bad.yaml",
    "filter <ham",
    "--state damaged filter <ham",
    "teach-pipe --as HAM! <ham",
    "teach-pipe --as spam --spool none <ham",
    "token revoke nothing",
    "quarantine release 0iq5r8jo4c1n2f3g",
    "restore ham",
    "import ham",
    "undo --user nobody",
    "evaluate missing",
)


def _statuses(place: Path) -> dict[str, int]:
    """Commands that read standard input, or might stay, run as processes; all others
    in this one.
    """
    apart = [line for line in CASES if " <" in line or line.startswith(("run ", "open-mailboxes "))]
    found = {line: _status(line, place) for line in apart}
    together = [line for line in CASES if line not in found]
    script = [sys.executable, str(Path(__file__)), "--statuses", *together]
    done = subprocess.run(
        script, capture_output=True, env=_in(place), cwd=place, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return {**found, **json.loads(done.stdout)}


def _status(line: str, place: Path) -> int:
    """Of one command; `<` names its standard input."""
    words, _, source = line.partition(" <")
    command = [sys.executable, "-m", "spamguard", *words.split()]
    data = (place / source).read_bytes() if source else b""
    done = subprocess.run(
        command,
        cwd=place,
        env=_in(place),
        input=data,
        capture_output=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    return done.returncode


def _in(place: Path) -> dict[str, str]:
    return {**environment(), "SPAMGUARD_STATE": str(place / "state")}


# ---- section: commands and options


def commands() -> dict[str, list[str]]:
    """Options and arguments of the program, of each command, and of each of a command's actions.
    Runs in a process of its own, which is the program again and again."""
    found: dict[str, list[str]] = {}
    _add_command(found, [])
    return found


def _add_command(found: dict[str, list[str]], words: list[str]) -> None:
    usage = re.split(r"\n\s*\n", output_here(*words, "--help"))[0]
    options = re.findall(r"(?<![\w-])(-{1,2}[a-z][a-z-]*)(?: ([^\s\]|)]+))?", usage)
    told = sorted(" ".join(filter(None, option)) for option in set(options))
    found[" ".join(words)] = [*told, f"arguments: {_arguments(usage, words)}"]
    if re.search(r" [A-Z]+ \.\.\.$", usage):
        choices = output_here(*words, "no-such-thing", status=2).rpartition("choose from")[2]
        for name in re.findall(r"[a-z][a-z-]*", choices):
            _add_command(found, [*words, name])


def _arguments(usage: str, words: Sequence[str]) -> str:
    """The part of a usage line after command and options."""
    text = " ".join(usage.split()).removeprefix(" ".join(["usage: spamguard", *words]))
    text = re.sub(r"\[-[^\]]*\]|\(-[^)]*\)|(?<!\S)--?[a-z-]+ \S+", "", text)
    return " ".join(text.split())


def options() -> Json:
    line = [sys.executable, str(Path(__file__)), "--commands"]
    done = subprocess.run(
        line, capture_output=True, env=environment(), timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: Json = json.loads(done.stdout)
    return answer


# ---- section: configuration


EACH_GROUP = """\
listeners:
  - {listen: 'smtp://127.0.0.1:1', position: standalone, next_hop: 'smtp://127.0.0.1:2',
     rules: [{when: spam, action: tag}],
     teach: {addresses: {spam@example.org: spam}, senders: ['*@example.org']}}
scanners: [{listen: 'spamd://127.0.0.1:3'}]
watch: [/home/*/Maildir]
accounts: [{name: a, server: s, user: u, password_command: c}]
teach: {}
web: {listen: '127.0.0.1:4', hosts: [h], proxy: {networks: [127.0.0.1]}}
shared: {database: dbname=spamguard}
"""


def configuration() -> Json:
    """Keys and defaults: the settings without a file, and those of one that has each group."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "spamguard.yaml"
        file.write_text(EACH_GROUP)
        return {
            name: yaml.safe_load(answer("--state", place, "check", *words).replace(place, "STATE"))
            for name, words in {"in force": (), "each group": (file,)}.items()
        }


_SAID = (
    "pattern", "format", "enum", "const", "default", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
)  # fmt: skip


def flat(schema: Json, root: Json) -> dict[str, str]:
    """A JSON Schema by path, without names of its parts and without prose."""
    found: dict[str, set[str]] = {}
    _flatten(schema, root, "", found, ())
    return {path: " ".join(sorted(words)) for path, words in sorted(found.items())}


def _flatten(
    schema: Any, root: Json, path: str, found: dict[str, set[str]], within: tuple[str, ...]
) -> None:
    words = found.setdefault(path, set())
    if not isinstance(schema, dict):
        return
    if (name := schema.get("$ref")) is not None:
        if name in within:
            words.add("recursive")
        else:
            target: Any = root
            for step in name.removeprefix("#/").split("/"):
                target = target[step]
            _flatten(target, root, path, found, (*within, name))
    kinds = schema.get("type", [])
    words.update([kinds] if isinstance(kinds, str) else kinds)
    words.update(f"{key}={json.dumps(schema[key])}" for key in _SAID if key in schema)
    if schema.get("additionalProperties") is False:
        words.add("closed")
    for part in (part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, ())):
        _flatten(part, root, path, found, within)
    for name, part in schema.get("properties", {}).items():
        _flatten(part, root, f"{path}.{name}", found, within)
        if name in schema.get("required", ()):
            found[f"{path}.{name}"].add("required")
    for key, end in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(key), dict):
            _flatten(schema[key], root, path + end, found, within)


# ---- sections of a running daemon: delivered mail, API, metrics


def daemon(state: Path, place: Path) -> Json:
    """The header fields that a daemon adds to mail, and what its API and its metrics offer."""
    from tests.e2e.daemon import running
    from tests.e2e.ports import free_port

    smtp, lmtp, lost, web, metrics = (free_port() for _ in range(5))
    hop = f"maildir:{place / 'Maildir'}"
    nobody = f"smtp://127.0.0.1:{free_port()}"
    listeners = [
        {"listen": f"smtp://127.0.0.1:{smtp}", "position": "standalone", "next_hop": hop},
        {"listen": f"lmtp://127.0.0.1:{lmtp}", "position": "after-queue", "next_hop": hop},
        {"listen": f"smtp://127.0.0.1:{lost}", "position": "standalone", "next_hop": nobody},
    ]
    for listener in listeners:
        listener["hostname"] = "mx.example"
    settings = {"state": str(state), "workers": 1, "listeners": listeners}
    settings |= {"web": {"listen": f"127.0.0.1:{web}"}, "metrics": f"127.0.0.1:{metrics}"}
    file = place / "daemon.yaml"
    file.write_text(yaml.safe_dump(settings))
    api, page = f"http://127.0.0.1:{web}/api/v1", f"http://127.0.0.1:{metrics}/metrics"
    with running(state, "--config", str(file), port=smtp, log=place / "daemon.log") as process:
        process.lines("page and API on")
        process.lines("monitors may ask")
        delivered = _delivered(smtp, lmtp, place / "Maildir")
        delivered["next hop is away"] = _refused(lost)
        anna, operator = (
            answer("--state", state, "token", "create", name, *who).strip()
            for name, who in (("anna", ("--user", "anna")), ("operator", ("--operator",)))
        )
        _get(page)  # lessons are counted from then on
        _get(f"{api}/learn?class=spam", anna, b"Subject: a lesson\n\nOf a user.\n")
        rare = ("last_lesson", "lessons_total{", "next_hop_errors_total{")
        eventually(
            lambda: all(name in _get(page) for name in rare), "all kinds of metrics are shown"
        )
        described = json.loads(_get(f"{api}/openapi.json", operator))
        shown = _get(page)
    return {"delivered": delivered, "api": _api(described), "metrics": _metrics(shown)}


def _delivered(smtp: int, lmtp: int, box: Path) -> Json:
    """Names of all header fields of delivered mail, where it lies, and our fields."""
    mail = [raw for _, raw in generate(TAUGHT + 6, 7)]
    messages = mail[:4] + mail[TAUGHT:]
    messages += [b"X-Spam-Flag: YES\nX-Spamguard: ham; id=a\nX-Bogosity: Spam\nSubject: x\n\nHi\n"]
    for count, raw in enumerate(messages):
        with (
            smtplib.LMTP("127.0.0.1", lmtp, CLIENT)
            if count % 2
            else smtplib.SMTP("127.0.0.1", smtp, CLIENT) as client
        ):
            client.sendmail(
                "a@example.org",
                ["b@example.org"],
                (b"X-Number: %d\n" % count + raw).replace(b"\n", b"\r\n"),
            )
    eventually(lambda: len(list(box.glob("**/new/*"))) == len(messages), "all is delivered")
    found: Json = {}
    for path in box.glob("**/new/*"):
        raw = path.read_bytes()
        (number,) = re.findall(rb"^X-Number: (\d+)", raw, re.MULTILINE)
        head = raw.replace(b"\r\n", b"\n").partition(b"\n\n")[0].decode("latin-1")
        names = re.findall(r"^([^\s:]+):", head, re.MULTILINE)
        folder = path.relative_to(box).parts[0]
        found[number.decode()] = [folder, *masked(raw), " ".join(names)]
    return dict(sorted(found.items()))


def _refused(port: int) -> list[Any]:
    """Reply code to the sender of a message that cannot be handed on."""
    with (
        smtplib.SMTP("127.0.0.1", port) as client,
        contextlib.suppress(smtplib.SMTPServerDisconnected),
    ):
        try:
            client.sendmail("a@example.org", ["b@example.org"], b"Subject: x\r\n\r\nHi\r\n")
        except smtplib.SMTPRecipientsRefused as error:
            return [code for code, _ in error.recipients.values()]
        except smtplib.SMTPResponseException as error:
            return [error.smtp_code]
    return []


def _get(url: str, token: str = "", message: bytes | None = None) -> str:
    """A page; of the API with a token, and where it takes one, a message."""
    head = {"Authorization": f"Bearer {token}", "Content-Type": "message/rfc822"} if token else {}
    with urllib.request.urlopen(
        urllib.request.Request(url, message, head), timeout=PATIENCE
    ) as response:
        text: str = response.read().decode()
        return text


def _api(described: Json) -> Json:
    """Each operation: parameters, and fields of request and response, by name and type."""
    found: Json = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            here: Json = {"status": " ".join(sorted(operation["responses"]))}
            for one in operation.get("parameters", ()):
                words = flat(one.get("schema", {}), described)
                here[f"{one['in']} {one['name']}"] = [bool(one.get("required")), words]
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                here[f"sent {kind}"] = flat(content.get("schema", {}), described)
            for status, response in operation["responses"].items():
                for kind, content in response.get("content", {}).items():
                    fields = flat(content.get("schema", {}), described)
                    if status[0] == "2":
                        here[f"{status} {kind}"] = fields
                    else:
                        found.setdefault(f"trouble {kind}", fields)
            found[f"{method.upper()} {path}"] = here
    return found


def _metrics(text: str) -> dict[str, str]:
    """Names, types and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(text):
        labels = sorted({label for sample in family.samples for label in sample.labels})
        found[family.name] = f"{family.type} {' '.join(labels)}".strip()
    return dict(sorted(found.items()))


# ---- section: real mail


def corpus(place: Path) -> Json:
    """One hash of label and score of each message of an online run on real mail.

    Nine digits of a score: in the last bits exp and log of numpy differ between processors with
    AVX-512 and without.
    """
    unpack(CORPUS, place)
    (source,) = place.rglob("index")
    prepared = place / "prepared"
    line = [sys.executable, str(SHARED / "bench" / "prep.py"), str(source.parent), str(prepared)]
    subprocess.run(line, check=True, capture_output=True)
    index = (prepared / "index").read_text().splitlines(keepends=True)[:CORPUS_MESSAGES]
    (prepared / "index").write_text("".join(index))
    scores = place / "scores.csv"
    answer("--state", place / "state", "evaluate", prepared / "index", "--scores", scores)
    rows = [line.split(",") for line in scores.read_text().splitlines()[1:]]
    lines = [f"{gold} {label} {float(score):.9g}\n" for _, gold, label, score, _ in rows]
    digest = short("".join(lines).encode())
    return {"messages": len(lines), "hash": digest, "last": lines[-1].strip()}


# ---- the tests


def compare(name: str, found: Any) -> None:
    """With what the record says of a subject."""
    file = RECORD / f"{name}.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    assert found == known, f"this is not what {file.name} says: if it shall be so, `{WRITE}`"


@pytest.fixture(scope="module")
def courses(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Json]]:
    """State directory and results of each course of lessons; each course is played once."""
    known: dict[str, tuple[Path, Json]] = {}

    def course(native: str) -> tuple[Path, Json]:
        if native not in known:
            state = tmp_path_factory.mktemp(native) / "state"
            known[native] = state, played(state, native)
        return known[native]

    return course


Courses = Callable[[str], tuple[Path, Json]]


@pytest.mark.parametrize("native", ["compiled", pytest.param("numpy", marks=pytest.mark.slow)])
@pytest.mark.parametrize("section", ["verdicts", "receipts", "tables", "words"])
def test_course(section: str, native: str, courses: Courses) -> None:
    """With the compiled functions and without them, the same bits."""
    found = courses(native)[1]
    assert found["native"] in (native, "numpy"), "the switch is not known any more"
    compare(section, found[section])


def test_header_fields(courses: Courses) -> None:
    compare("headers", headers(courses("compiled")[0]))


def test_exit_statuses(courses: Courses, tmp_path: Path) -> None:
    state, found = courses("compiled")
    compare("statuses", statuses(state, found["labels"], tmp_path))


def test_commands_and_options() -> None:
    compare("commands", options())


def test_configuration() -> None:
    compare("configuration", configuration())


@pytest.mark.slow
def test_daemon(courses: Courses, tmp_path: Path) -> None:
    state = shutil.copytree(courses("compiled")[0], tmp_path / "state")
    for name, found in daemon(Path(state), tmp_path).items():
        compare(name, found)


@pytest.mark.corpus
def test_real_mail(tmp_path: Path) -> None:
    if not CORPUS.exists():
        pytest.skip("the SpamAssassin corpus is not there (../shared/corpora/spamassassin.tar.xz)")
    compare("corpus", corpus(tmp_path))


# ---- the script


def whole(place: Path) -> Iterator[tuple[str, Any]]:
    """All sections; the section of the corpus only if the corpus is there."""
    state = place / "compiled"
    session = played(state, "compiled")
    assert {**played(place / "numpy", "numpy"), "native": ""} == {**session, "native": ""}
    yield from ((name, session[name]) for name in ("verdicts", "receipts", "tables", "words"))
    yield "headers", headers(state)
    (place / "statuses").mkdir()
    yield "statuses", statuses(state, session["labels"], place / "statuses")
    yield "commands", options()
    yield "configuration", configuration()
    (place / "daemon").mkdir()
    yield from daemon(state, place / "daemon").items()
    if CORPUS.exists():
        (place / "corpus").mkdir()
        yield "corpus", corpus(place / "corpus")


def write() -> None:
    """Write all subjects. What cannot be told here, as of the corpus where there is none, goes."""
    with tempfile.TemporaryDirectory() as place:
        record = dict(whole(Path(place)))
    RECORD.mkdir(exist_ok=True)
    for file in RECORD.iterdir():
        if file.stem not in record:
            file.unlink()
    for name, found in record.items():
        text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
        (RECORD / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main(words: Sequence[str]) -> int:
    match list(words):
        case ["--write"]:
            write()
        case ["--play", state]:
            print(json.dumps(play(Path(state))))
        case ["--statuses", *lines]:
            print(json.dumps({line: run_here(*line.split())[0] for line in lines}))
        case ["--commands"]:
            print(json.dumps(commands()))
        case _:
            print("usage: test_record.py --write", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
