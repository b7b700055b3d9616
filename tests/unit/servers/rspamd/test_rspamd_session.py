"""rspamd's protocol as its clients speak it, and malformed requests."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard

from spamguard.config.options import Action, OnError, Policy, Rule, ScannerLimits
from spamguard.proxy.scorer import NotScanned
from spamguard.users import UserResolver
from tests.support.scanners import HAM, UNSURE, ScriptedJudge, Served
from tests.support.waiting import PATIENCE
from tests.unit.servers.rspamd.talking import MAIL, parse, request, run, said


def test_checkv2(tmp_path: Path) -> None:
    answer = said(tmp_path, request("/checkv2")).json
    score = answer["score"]
    assert (answer["is_skipped"], answer["required_score"], answer["action"], score > 5) == (
        False,
        5.0,
        "add header",
        True,
    )
    assert answer["thresholds"] == {"add header": 5.0}
    (symbol,) = answer["symbols"].values()
    name, *words = symbol.pop("options")
    assert symbol == {"name": "SPAMGUARD_SPAM", "score": score, "metric_score": score}
    assert words == ["cheap", "odd??X-Evil: yes?"]
    assert (answer["message-id"], answer["urls"], answer["emails"]) == ("1@x.example", [], [])
    assert answer["time_real"] >= 0
    assert answer["milter"]["remove_headers"] == {"X-Spam-Flag": 0}
    added = answer["milter"]["add_headers"]
    assert added["X-Spam-Flag"] == "YES"
    assert added["X-Spam-Status"] == f"Yes, score={score} required=5.0 tests=SPAMGUARD_SPAM"
    assert f"id={name};" in added["X-Spamguard"]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (b"Message-ID:\r\nSubject: x", "undef"),
        (b"Message-ID:  \r\n\t<1@x.example>\r\nSubject: x", "1@x.example"),
        (b"message-id :\n 1@x.example\nSubject: x", "1@x.example"),
    ],
)
def test_the_message_id_is_that_of_its_own_field(tmp_path: Path, field: bytes, told: str) -> None:
    assert (
        said(tmp_path, request("/checkv2", field + b"\r\n\r\nhello\r\n")).json["message-id"] == told
    )


@pytest.mark.parametrize(
    ("judge", "settings", "action"),
    [
        (ScriptedJudge(HAM), {}, "no action"),
        (ScriptedJudge(UNSURE), {}, "no action"),
        (ScriptedJudge(), {"policy": Policy((Rule("spam", Action.REJECT, 0.99),))}, "reject"),
        (
            ScriptedJudge(UNSURE),
            {"policy": Policy((Rule("unsure", Action.DEFER, 0.3),))},
            "soft reject",
        ),
        (
            ScriptedJudge(NotScanned("timeout")),
            {
                "policy": Policy(
                    (Rule("unsure", Action.DEFER, 0.1), Rule("spam", Action.REJECT, 0.9))
                )
            },
            "no action",
        ),
        (
            ScriptedJudge(NotScanned("timeout")),
            {"policy": Policy(on_error=OnError.DEFER)},
            "soft reject",
        ),
    ],
)
def test_actions_as_rspamd_writes_them(
    tmp_path: Path, judge: ScriptedJudge, settings: Any, action: str
) -> None:
    answer = said(tmp_path, request("/checkv2"), judge=judge, **settings).json
    assert answer["action"] == action
    assert answer["is_skipped"] is isinstance(judge.says, NotScanned)


def test_the_exact_probability_is_shown_only_if_configured(tmp_path: Path) -> None:
    answer = said(tmp_path, request("/checkv2"), policy=Policy(tell_probability=True)).json
    assert answer["symbols"]["SPAMGUARD_SPAM"]["options"][1] == "cheap +1.50"
    assert answer["milter"]["add_headers"]["X-Spamguard-Probability"] == "0.9990"
    assert round(answer["score"], 1) == answer["score"]


def test_exim_speaks_the_protocol_before_http(tmp_path: Path) -> None:
    """`variant=rspamd`: it does not close its side, and reads the answer by sscanf."""
    head = (
        f"CHECK RSPAMC/1.3\r\nContent-length: {len(MAIL)}\r\nQueue-Id: 1a\r\nFrom: "
        "<a@x.example>\r\nRecipient-Number: 1\r\n"
    )

    async def talk(served: Served) -> bytes:
        answer = await served.say(
            f"{head}Rcpt: <b@y.example>\r\nHelo: h\r\nIP: 192.0.2.1\r\n\r\n".encode() + MAIL,
            end=False,
        )
        (entry,) = served.entries
        assert (entry.envelope.sender.address, entry.envelope.client.address, entry.queue_id) == (
            "a@x.example",
            "192.0.2.1",
            "1a",
        )
        assert served.judge.raws == [MAIL]
        return answer

    answer = run(tmp_path, talk)
    assert re.match(
        (
            rb"RSPAMD/1\.3 0 EX_OK\r\nMetric: default; True; \d+\.\d\d / 5\.00 / 5\.00\r\n"
            rb"Action: add header\r\n"
        ),
        answer,
    )


FIELDS = {
    "From": "<a@x.example>",
    "Rcpt": "b@y.example",
    "Rcpt2": "<c@y.example>, d@y.example",
    "IP": "192.0.2.1",
    "Helo": "h.example",
} | {
    "Hostname": "n.example",
    "Queue-Id": "Q1",
    "MTA-Name": "mx.y.example",
    "TLS-Version": "TLSv1.3",
}


def test_the_description_of_a_message_is_recorded(tmp_path: Path) -> None:
    async def talk(served: Served) -> Any:
        await served.say(request("/checkv2", fields=FIELDS))
        assert served.judge.on_top[0].startswith(
            b"Received: from h.example (n.example [192.0.2.1])\r\n\tby mx.y.example with ESMTPS"
        )
        return served.entries[0]

    entry = run(tmp_path, talk)
    assert entry.envelope.sender.address == "a@x.example"
    assert [recipient.address for recipient in entry.envelope.recipients] == [
        "b@y.example",
        "c@y.example",
        "d@y.example",
    ]
    assert (entry.envelope.client.address, entry.queue_id, entry.subject) == (
        "192.0.2.1",
        "Q1",
        "x",
    )


@pytest.mark.parametrize(
    ("fields", "user"),
    [
        ({"User": "anna"}, "anna"),
        ({"User": "anna", "Rcpt": "ben@y.example"}, "ben@y.example"),
        ({"User": "anna", "Rcpt": "x@y.example", "Deliver-To": "<ben@y.example>"}, "ben@y.example"),
        ({"IP": "nonsense", "User": " "}, ""),
    ],
)
def test_whose_mail_it_is(tmp_path: Path, fields: Mapping[str, str], user: str) -> None:
    async def talk(served: Served) -> list[str]:
        await served.say(request("/checkv2", fields=fields))
        return list(served.judge.users[0])[:1]

    assert run(tmp_path, talk, resolver=UserResolver(())) == ([user] if user else [])


@pytest.mark.parametrize("name", ["Compression", "Content-Encoding"])
def test_what_cannot_be_unpacked_is_not_judged(tmp_path: Path, name: str) -> None:
    judge = ScriptedJudge()
    assert (
        said(tmp_path, request("/checkv2", gzip.compress(MAIL), {name: "gzip"}), judge=judge).status
        == 415
    )
    assert judge.raws == []
    assert said(tmp_path, request("/checkv2", fields={name: "identity"})).status == 200


def test_compressed(tmp_path: Path) -> None:
    packed = zstandard.compress(MAIL)
    for fields in ({"Compression": "zstd"}, {"Content-Encoding": "zstd"}):
        judge = ScriptedJudge()
        assert said(tmp_path, request("/checkv2", packed, fields), judge=judge).status == 200
        assert judge.raws == [MAIL]
    for raw in (packed[:-3], MAIL, b""):
        assert said(tmp_path, request("/checkv2", raw, {"Compression": "zstd"})).status == 400


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    bomb = zstandard.compress(bytes(256 << 20))
    judge = ScriptedJudge()
    answer = said(
        tmp_path,
        request("/checkv2", bomb, {"Compression": "zstd"}),
        judge=judge,
        limits=ScannerLimits(message_size=1 << 20),
    )
    assert (answer.status, answer.json, judge.raws) == (413, {"error": "too large"}, [])


def test_the_other_pages(tmp_path: Path) -> None:
    ping = said(tmp_path, request("/ping", b"", method="GET"))
    assert (ping.status, ping.body) == (200, b"pong\r\n")
    for path in ("/stat", "/auth"):
        assert said(tmp_path, request(path, b"", method="GET")).status == 404


def test_a_connection_that_is_kept_has_a_last_request(tmp_path: Path) -> None:
    """It was on its way when the door began to close."""

    async def talk(served: Served) -> bytes:
        reader, writer = await served.connect()
        try:
            writer.write(request("/ping", b"", method="GET"))
            await reader.readuntil(b"pong\r\n")
            draining = asyncio.create_task(
                served.door.drain(asyncio.get_running_loop().time() + 30)
            )
            await asyncio.sleep(0.1)
            writer.write(request("/checkv2") + request("/ping"))
            data = await asyncio.wait_for(reader.read(), PATIENCE)
            await draining
            return data
        finally:
            writer.close()

    answer = parse(run(tmp_path, talk))
    assert (answer.status, "Connection: close" in answer.fields) == (200, True)
    assert b"pong" not in answer.body


def test_a_client_that_waits_for_100_continue_gets_it(tmp_path: Path) -> None:
    async def talk(served: Served) -> bytes:
        reader, writer = await served.connect()
        try:
            head, _, raw = request("/checkv2", fields={"Expect": "100-continue"}).partition(
                b"\r\n\r\n"
            )
            writer.write(head + b"\r\n\r\n")
            assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 100")
            writer.write(raw)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()

    assert b"200" in run(tmp_path, talk)


def test_a_status_has_words(tmp_path: Path) -> None:
    """Without them rspamc ends by a signal."""
    assert said(tmp_path, request("/ping")).fields.startswith("HTTP/1.1 200 OK\r\n")
    assert said(tmp_path, request("/nothing")).fields.startswith(
        "HTTP/1.1 404 no such thing here\r\n"
    )
    assert said(tmp_path, request("/learnspam")).fields.startswith(
        "HTTP/1.1 403 this client may not teach"
    )


@pytest.mark.parametrize("at", [1, 10, 17, 18])
def test_the_first_line_may_come_in_pieces(tmp_path: Path, at: int) -> None:
    async def talk(served: Served) -> bytes:
        reader, writer = await served.connect()
        try:
            data = f"CHECK RSPAMC/1.3\r\nContent-length: {len(MAIL)}\r\n\r\n".encode() + MAIL
            writer.write(data[:at])
            await asyncio.sleep(0.1)
            writer.write(data[at:])
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()

    assert run(tmp_path, talk).startswith(b"RSPAMD/1.3 0 EX_OK")


def test_chunks(tmp_path: Path) -> None:
    judge = ScriptedJudge()
    data = (
        b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n"
        b"0\r\n\r\n"
    ) % (len(MAIL), MAIL)
    assert said(tmp_path, data, judge=judge).status == 200
    assert judge.raws == [MAIL]


# ---- what nobody should say


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x00" * 200_000, 400),
        (b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000, 431),
        (b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nshort", 400),
        (
            (
                b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: "
                b"chunked\r\n\r\nzz\r\n"
            ),
            400,
        ),
        (b"POST /checkv2 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),  # no Host
        (request("/nothing"), 404),
        (request("/checkv2", fields={"Origin": "null"}), 403),
        (request("/checkv2", fields={"Sec-Fetch-Site": "cross-site"}), 403),
        (request("/../checkv2"), 404),
        (request("/%63heckv2"), 404),
        (request("/checkv2", method="DELETE"), 405),
        (request("/checkv2", b""), 400),
        (b"CHECK RSPAMC/9.9\r\n\r\n", 400),
    ],
)
def test_nonsense_is_refused_and_never_judged(tmp_path: Path, data: bytes, status: int) -> None:
    judge = ScriptedJudge()
    answer = said(tmp_path, data, judge=judge)
    assert (answer.status, list(answer.json), judge.raws) == (status, ["error"], [])
    assert "Traceback" not in answer.fields
    assert "close" in answer.fields
