"""How a session with a next hop begins: greeting, EHLO or HELO, STARTTLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Hop, Protocol, Tls
from spamguard.delivery import smtp
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Reply
from tests.support.certificates import needs_openssl, self_signed, server_context
from tests.support.hops import EVERYTHING, Act, FakeHop, Script, Then
from tests.support.waiting import PATIENCE
from tests.unit.delivery.talks import UNREACHABLE, UNSAFE, codes, content, hand_on, hop_to, talk

OFFERED = b"250-hop\r\n250-STARTTLS\r\n250 DSN\r\n"


@pytest.mark.parametrize("lmtp", [False, True])
@pytest.mark.parametrize(
    ("step", "answer"),
    [
        ("GREETING", b"554 5.7.1 go away\r\n"),
        ("GREETING", b"421 4.3.2 later\r\n"),
        ("GREETING", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("GREETING", b"354 what\r\n"),
        ("HELLO", b"450 4.3.2 later\r\n"),
        ("HELLO", b"421 4.3.2 later\r\n"),
        ("HELLO", b"354 what\r\n"),
        ("HELLO", b"220 a\r\n250 b\r\n"),
    ],
)
def test_a_hop_that_does_not_welcome_us_is_down(step: str, answer: bytes, lmtp: bool) -> None:
    script: Script = {"EHLO": answer, "LHLO": answer} if step == "HELLO" else {step: answer}
    fake = FakeHop(script, lmtp=lmtp)
    replies = talk(fake, hand_on)
    assert codes(replies) == [451]
    assert not [command for command in fake.commands if command.startswith(("MAIL", "HELO"))]


def test_the_text_of_a_closing_hop_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    talk(FakeHop({"GREETING": b"421-4.3.2 going\r\n421 down\r\n"}), hand_on)
    assert "421 4.3.2 going down" in caplog.text


@pytest.mark.parametrize("refusal", [b"502 5.5.1 what?\r\n", b"500 no\r\n"])
def test_a_hop_without_ehlo_hears_helo(refusal: bytes) -> None:
    fake = FakeHop({"EHLO": refusal, "HELO": b"250-PIPELINING\r\n250 DSN\r\n"})

    async def twice(hop: SmtpNextHop) -> list[Reply]:
        replies = [*await hand_on(hop), *await hand_on(hop)]
        assert hop.extensions == {}
        return replies

    assert codes(talk(fake, twice)) == [250] * 6
    assert fake.commands[:3] == ["EHLO me.example", "HELO me.example", "MAIL FROM:<from@s.example>"]
    assert len(fake.sessions) == 1


def test_a_hop_that_refuses_helo_too_is_down() -> None:
    assert talk(FakeHop({"EHLO": b"502 no\r\n", "HELO": b"502 no\r\n"}), hand_on) == [UNREACHABLE]


def test_lmtp_has_no_other_hello() -> None:
    fake = FakeHop({"LHLO": b"502 no\r\n"}, lmtp=True)
    assert talk(fake, hand_on) == [UNREACHABLE]
    assert fake.commands == ["LHLO me.example"]


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint(Protocol.LMTP, path=Path("/nonexistent/socket")),
        Endpoint(Protocol.LMTP, path=Path("/" + "x" * 200)),
        Endpoint(Protocol.SMTP, "does-not-exist.invalid", 25),
        Endpoint(Protocol.SMTP, "x" * 70 + ".example", 25),
        Endpoint(Protocol.SMTP, "a..b", 25),
    ],
)
def test_a_hop_that_cannot_be_found_is_down(endpoint: Endpoint) -> None:
    async def run() -> list[Reply]:
        return await hand_on(SmtpNextHop(Hop(endpoint, connect=5), "me.example"))

    assert asyncio.run(run()) == [UNREACHABLE]


def test_a_hop_that_does_not_take_connections_is_down() -> None:
    async def run() -> list[Reply]:
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for one in (first, second):
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            endpoint = Endpoint(Protocol.SMTP, *full.getsockname())
            return await hand_on(SmtpNextHop(Hop(endpoint, connect=0.2, command=0.2), "me.example"))

    assert asyncio.run(run()) == [UNREACHABLE]


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("2001:db8::1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_opportunistic_tls_is_for_other_machines(peer: str, local: bool) -> None:
    assert smtp.wants_tls(Tls.OPPORTUNISTIC, True, peer) is not local
    assert not smtp.wants_tls(Tls.OPPORTUNISTIC, False, peer)
    assert not smtp.wants_tls(Tls.OFF, True, peer)
    assert smtp.wants_tls(Tls.REQUIRED, True, peer)


def test_loopback_is_spoken_to_in_the_clear() -> None:
    fake = FakeHop({"EHLO": OFFERED})
    assert codes(talk(fake, hand_on)) == [250, 250, 250]
    assert "STARTTLS" not in fake.commands


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if loopback were another machine."""
    monkeypatch.setattr(smtp, "is_local", lambda peer: False)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls"))


def required(
    fake: FakeHop,
    host: str = "localhost",
    tls: Tls = Tls.REQUIRED,
    seconds: float = 5.0,
    between: Callable[[], object] = int,
) -> list[Reply]:
    """Two messages to a hop by its name. between: what happens between them."""

    async def run() -> list[Reply]:
        async with fake.running():
            endpoint = Endpoint(fake.endpoint.protocol, host, fake.endpoint.port)
            hop = SmtpNextHop(Hop(endpoint, tls, connect=seconds, command=seconds), "me.example")
            try:
                first = await hand_on(hop)
                between()
                return [*first, *await hand_on(hop)]
            finally:
                await hop.close()

    return asyncio.run(run())


@needs_openssl
@pytest.mark.parametrize("lmtp", [False, True])
def test_required_tls_with_a_certificate_of_a_known_authority(
    pem: Path, monkeypatch: pytest.MonkeyPatch, lmtp: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    after = [OFFERED, b"250-hop\r\n250 SIZE\r\n"]
    fake = FakeHop({"EHLO": after, "LHLO": after}, lmtp=lmtp, tls=server_context(pem))
    assert codes(required(fake)) == [250] * 6
    hello = "LHLO" if lmtp else "EHLO"
    assert fake.commands[:4] == [
        f"{hello} me.example",
        "STARTTLS",
        f"{hello} me.example",
        "MAIL FROM:<from@s.example>",
    ]
    (session,) = fake.sessions
    assert session.encrypted


@needs_openssl
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_required_tls_with_an_untrusted_certificate_or_one_for_another_host(
    pem: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    if host == "127.0.0.1":
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))  # known, but for localhost
    fake = FakeHop({"EHLO": OFFERED}, tls=server_context(pem))
    assert required(fake, host) == [UNSAFE, UNSAFE]
    assert not [command for command in fake.commands if command.startswith("MAIL")]


@pytest.mark.parametrize(
    "script",
    [
        {"EHLO": EVERYTHING},
        {"EHLO": OFFERED, "STARTTLS": b"454 4.7.0 not now\r\n"},
        {"EHLO": OFFERED, "STARTTLS": Then(b"220 go\r\n", Act.DROP)},
        {"EHLO": OFFERED, "STARTTLS": Then(b"220 go\r\n", Act.RESET)},
        {"EHLO": OFFERED, "STARTTLS": Then(b"220 go\r\n", Act.STALL)},
        {"EHLO": OFFERED, "STARTTLS": b"220 go\r\n250 injected\r\n"},
        {"EHLO": OFFERED, "STARTTLS": b"220 go\r\n25"},
    ],
)
def test_required_tls_that_cannot_be_had(script: Script) -> None:
    fake = FakeHop(script)
    assert required(fake, seconds=0.5) == [UNSAFE, UNSAFE]
    assert ("STARTTLS" in fake.commands) is (script["EHLO"] == OFFERED)
    assert not [command for command in fake.commands if command.startswith("MAIL")]


@pytest.mark.parametrize("step", [Act.DROP, Act.STALL])
def test_required_tls_of_a_hop_that_does_not_answer(step: Act) -> None:
    assert required(FakeHop({"EHLO": OFFERED, "STARTTLS": step}), seconds=0.3) == [
        UNREACHABLE,
        UNREACHABLE,
    ]


@needs_openssl
def test_opportunistic_tls_asks_for_no_certificate(pem: Path, far_away: None) -> None:
    fake = FakeHop({"EHLO": [OFFERED, b"250-hop\r\n250 SIZE\r\n"]}, tls=server_context(pem))
    assert codes(required(fake, tls=Tls.OPPORTUNISTIC)) == [250] * 6
    assert [session.encrypted for session in fake.sessions] == [True]


@pytest.mark.parametrize(
    "answer",
    [
        b"454 4.7.0 not now\r\n",
        Then(b"220 go\r\n", Act.DROP),
        Then(b"220 go\r\nnonsense", Act.DROP),
    ],
)
def test_opportunistic_tls_does_without_where_it_fails(
    answer: bytes | Then, far_away: None
) -> None:
    fake = FakeHop({"EHLO": OFFERED, "STARTTLS": answer})
    expected = [451] * 2 if b"nonsense" in getattr(answer, "answer", b"") else [250] * 6
    assert codes(required(fake, tls=Tls.OPPORTUNISTIC)) == expected


@needs_openssl
def test_what_was_offered_before_tls_is_forgotten(pem: Path, far_away: None) -> None:
    fake = FakeHop(
        {"EHLO": [EVERYTHING.replace(b"DSN", b"STARTTLS"), b"250-hop\r\n250 SIZE\r\n"]},
        tls=server_context(pem),
    )

    async def run() -> None:
        async with fake.running():
            hop = hop_to(fake)
            await hop.probe()
            assert hop.extensions == {"SIZE": ""}
            await hop.close()

    asyncio.run(run())


@needs_openssl
def test_a_large_message_over_tls(pem: Path, far_away: None) -> None:
    body = b"0123456789abcdef\r\n" * 200_000
    fake = FakeHop({"EHLO": [OFFERED, b"250 hop\r\n"]}, tls=server_context(pem))
    assert codes(talk(fake, lambda hop: hand_on(hop, message=content(body)))) == [250, 250, 250]
    assert fake.messages[0].data == body


def test_a_context_without_checks_is_made_only_where_none_are_wanted() -> None:
    for tls in (Tls.OPPORTUNISTIC, Tls.REQUIRED):
        context = smtp.make_tls_context(tls)
        assert context.check_hostname is (tls is Tls.REQUIRED)
        assert (context.verify_mode is ssl.CERT_REQUIRED) is (tls is Tls.REQUIRED)


def test_a_hop_that_speaks_slower_and_slower_is_given_up() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while not writer.is_closing():
                writer.write(b"220-hop\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.transport.abort()

    async def run() -> list[Reply]:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        try:
            endpoint = Endpoint(Protocol.SMTP, *server.sockets[0].getsockname())
            async with asyncio.timeout(PATIENCE):
                return await hand_on(SmtpNextHop(Hop(endpoint, command=0.4), "me.example"))
        finally:
            server.close()
            await asyncio.sleep(0.2)

    assert asyncio.run(run()) == [UNREACHABLE]
