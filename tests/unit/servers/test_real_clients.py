"""The SMTP door with clients that others wrote."""

import asyncio
import shutil
import smtplib
import subprocess

import pytest

from spamguard.config.options import Certificate, Protocol
from tests.support.certificates import self_signed
from tests.support.waiting import PATIENCE
from tests.unit.servers.support import ScriptedProxy, serving


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def run(directory, proxy, program, *arguments, **options):
    """Exit status and output of a program; host and port go into its arguments."""

    async def main():
        async with serving(directory, proxy, **options) as served:
            told = [argument.format(port=served.port) for argument in arguments]
            started = await asyncio.create_subprocess_exec(
                program, *told, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            output, _ = await asyncio.wait_for(started.communicate(), PATIENCE)
            return started.returncode, output.decode()

    return asyncio.run(main())


@needs("smtp-source")
@pytest.mark.parametrize("protocol", [Protocol.SMTP, Protocol.LMTP])
@pytest.mark.parametrize("keep", [True, False])
def test_smtp_source(tmp_path, protocol, keep):
    proxy = ScriptedProxy(answers_each=protocol is Protocol.LMTP)
    options = [*(["-L"] if protocol is Protocol.LMTP else []), *(["-d"] if keep else [])]
    command = [
        *options,
        "-m",
        "100",
        "-s",
        "10",
        "-l",
        "6000",
        "-f",
        "a@x.example",
        "-t",
        "b@x.example",
        "127.0.0.1:{port}",
    ]
    assert run(tmp_path, proxy, "smtp-source", *command, protocol=protocol) == (0, "")
    assert len(proxy.contents) == 100
    assert all(len(content) >= 6000 for content in proxy.contents)


@needs("smtp-source")
def test_smtp_source_with_many_recipients(tmp_path):
    proxy = ScriptedProxy()
    command = [
        "-m",
        "4",
        "-s",
        "2",
        "-r",
        "1000",
        "-f",
        "a@x.example",
        "-t",
        "b@x.example",
        "127.0.0.1:{port}",
    ]
    assert run(tmp_path, proxy, "smtp-source", *command) == (0, "")
    assert [len(transaction.recipients) for transaction in proxy.passed] == [1000] * 4


@needs("swaks")
def test_swaks_in_a_pipeline_and_by_tls(tmp_path):
    proxy = ScriptedProxy(extensions={"8BITMIME": ""})
    pem = self_signed(tmp_path)
    command = [
        "--server",
        "127.0.0.1:{port}",
        "--from",
        "a@x.example",
        "--to",
        "b@x.example,c@x.example",
        "--body",
        "hello\n.\n..\n",
    ]
    pipelined = ["--pipeline", "--xclient", "ADDR=192.0.2.9"]
    for more in ([], pipelined, ["--tls"] if swaks_speaks_tls() else []):
        status, output = run(tmp_path, proxy, "swaks", *command, *more, tls=Certificate(pem, pem))
        assert status == 0, output
    assert len(proxy.contents) == 3
    assert proxy.contents[1].endswith(b"hello\r\n.\r\n..\r\n\r\n\r\n")
    assert proxy.passed[1].client.address == "192.0.2.9"


def swaks_speaks_tls():
    return (
        "TLS supported"
        in subprocess.run(
            ["swaks", "--support"], capture_output=True, text=True, check=False
        ).stdout
    )


def test_smtplib(tmp_path):
    proxy = ScriptedProxy(extensions={"8BITMIME": "", "SMTPUTF8": ""})

    def send(port):
        with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
            refused = client.sendmail(
                "ä@x.example",
                ["b@x.example", "ö@x.example"],
                b"Subject: x\r\n\r\n.\r\n",
                mail_options=["SMTPUTF8"],
            )
            return refused, client.verify("root"), client.noop()[0]

    async def main():
        async with serving(tmp_path, proxy) as served:
            return await asyncio.to_thread(send, served.port)

    refused, verified, idle = asyncio.run(main())
    assert (refused, verified[0], idle) == ({}, 252, 250)
    assert proxy.contents == [b"Subject: x\r\n\r\n.\r\n"]
    assert [recipient.address for recipient in proxy.passed[0].recipients] == [
        "b@x.example",
        "ö@x.example",
    ]
