"""How a session with a next hop begins: greeting, EHLO or HELO, STARTTLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Hop, Tls
from spamguard.delivery import smtp
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Reply
from tests.support.certificates import needs_openssl, self_signed, server_context
from tests.support.hops import EVERYTHING, Act, FakeHop, Script, Then
from tests.unit.delivery.talks import UNREACHABLE, UNSAFE, codes, hand_on, hop_to, talk

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


@pytest.mark.parametrize("refusal", [b"502 5.5.1 what?\r\n", b"500 no\r\n"])
def test_a_hop_without_ehlo_hears_helo(refusal: bytes) -> None:
    fake = FakeHop({"EHLO": refusal, "HELO": b"250-PIPELINING\r\n250 DSN\r\n"})

    async def twice(hop: SmtpNextHop) -> list[Reply]:
        replies = [*await hand_on(hop), *await hand_on(hop)]
        assert hop.extensions == {}
        return replies

    assert codes(talk(fake, twice)) == [250] * 6
    assert fake.commands[:3] == ["EHLO me.example", "HELO me.example", "MAIL FROM:<from@s.example>"]


def test_a_hop_that_refuses_helo_too_is_down() -> None:
    assert talk(FakeHop({"EHLO": b"502 no\r\n", "HELO": b"502 no\r\n"}), hand_on) == [UNREACHABLE]


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
    assert smtp.is_local(peer) is local


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


@pytest.mark.parametrize("tls", [Tls.OFF, Tls.OPPORTUNISTIC])
def test_no_tls_where_it_is_not_wanted(tls: Tls) -> None:
    fake = FakeHop({"EHLO": OFFERED})
    assert codes(required(fake, tls=tls)) == [250] * 6
    assert "STARTTLS" not in fake.commands


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
