"""STARTTLS at the door."""

import asyncio
import ssl

import pytest

from spamguard.config.options import Certificate, DoorLimits
from spamguard.errors import StartError
from tests.support.certificates import needs_openssl, self_signed
from tests.support.waiting import PATIENCE, until
from tests.unit.servers.support import MESSAGE, ScriptedProxy, serving

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("certificate"))


def run(pem, directory, talk, proxy=None, **options):
    async def main():
        async with serving(
            directory, proxy or ScriptedProxy(), tls=Certificate(pem, pem), **options
        ) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


async def encrypt(caller, pem):
    assert (await caller.say(b"STARTTLS"))[0] == 220
    await caller.writer.start_tls(
        ssl.create_default_context(cafile=pem), server_hostname="localhost"
    )


def test_a_message_by_tls_and_everything_before_it_forgotten(pem, tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        plain = (await caller.say(b"EHLO me"))[1]
        assert await caller.codes(b"XFORWARD NAME=before.example") == [250]
        await encrypt(caller, pem)
        heard = await caller.codes(b"MAIL FROM:<>")
        secure = (await caller.say(b"EHLO me"))[1]
        heard += await caller.codes(
            b"STARTTLS", b"MAIL FROM:<>", b"RCPT TO:<b@c>", b"DATA", MESSAGE * 20000 + b".", b"QUIT"
        )
        return "STARTTLS" in plain, "STARTTLS" in secure, heard, await caller.at_end()

    assert run(pem, tmp_path, talk, proxy) == (
        True,
        False,
        [503, 503, 250, 250, 354, 250, 221],
        True,
    )
    assert proxy.contents == [MESSAGE * 20000]
    assert (proxy.passed[0].client.protocol, proxy.passed[0].client.name) == ("ESMTPS", "")


def test_a_handshake_that_stalls_keeps_no_place(pem, tmp_path):
    async def talk(served):
        caller = await served.call()
        assert await caller.code() == 220
        assert await caller.codes(b"EHLO me", b"STARTTLS") == [250, 220]
        other = await served.call()
        return await other.code(), await caller.at_end()

    assert run(pem, tmp_path, talk, limits=DoorLimits(connections=1)) == (220, True)


@pytest.mark.parametrize(
    "injected", [b"RSET\r\n", b"MAIL FROM:<evil@x.example>\r\nRCPT TO:<b@c>\r\n", b"M"]
)
def test_what_follows_starttls_in_the_clear_is_never_obeyed(pem, tmp_path, injected):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        await caller.say(b"EHLO me")
        caller.send(b"STARTTLS\r\n" + injected)
        return await caller.code(), await caller.at_end()

    assert run(pem, tmp_path, talk, proxy) == (421, True)
    assert proxy.passed == []


def test_nor_what_comes_in_a_piece_of_its_own(pem, tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        assert await caller.codes(b"EHLO me", b"STARTTLS") == [250, 220]
        caller.send(b"MAIL FROM:<evil@x.example>\r\n")
        await until(lambda: served.door.connections == 0)

    run(pem, tmp_path, talk, proxy)
    assert proxy.passed == []


def test_a_certificate_that_is_none_is_found_when_the_door_is_made(tmp_path):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    with pytest.raises(
        StartError, match=r"wrong\.pem: cannot be used for TLS .*: name a certificate and its key"
    ):
        run(wrong, tmp_path, lambda served: None)
