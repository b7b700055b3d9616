"""Mail that is hard to pass on, through a real Postfix before and behind spamguard, and the client
in both logs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e import daemon, postfix
from tests.e2e.bodies import BODIES, HEAD
from tests.e2e.peers import Client
from tests.e2e.test_positions import body, configuration, fields
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(
    shutil.which("postfix") is None, reason="needs Postfix: apt-get install postfix"
)

NO_SPEED_ADJUST = {"    -o smtpd_proxy_options=speed_adjust\n": ""}
PLACES = {
    "before-queue": ("before-queue", {}),
    "before-queue without speed_adjust": ("before-queue", NO_SPEED_ADJUST),
    "after-queue": ("after-queue", {}),
}
# so that a test can say who it is
XCLIENT = "smtpd_authorized_xclient_hosts=127.0.0.0/8"


@dataclass
class PostfixSite:
    """A Postfix with the daemon in it. count: messages that were delivered so far."""

    server: postfix.Postfix
    running: daemon.Daemon
    count: int = 0

    def sent(
        self, message: bytes, sender: bytes = b"<a@example.org>", xclient: bytes = b""
    ) -> bytes:
        """The message as it arrives in the Maildir."""
        before = {path.name for path in (self.server.maildir() / "new").glob("*")}
        with Client(self.server.smtp_port, 60) as client:
            if xclient:
                assert client.reply().startswith(b"220")
                assert client.ask(b"XCLIENT " + xclient).startswith(b"220")
                assert client.ask(b"EHLO client.example").startswith(b"250")
            else:
                client.hello()
            client.begin(b"<anna@example.net>", sender=sender)
            reply = client.data((b"\r\n" + message).replace(b"\r\n.", b"\r\n..")[2:])
            assert reply.startswith(b"250 2.0.0 Ok: queued"), reply
        self.count += 1
        self.server.delivered(self.count)
        (new,) = [
            path for path in (self.server.maildir() / "new").glob("*") if path.name not in before
        ]
        return new.read_bytes()


@pytest.fixture(scope="module", params=PLACES.values(), ids=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostfixSite]:
    directory = tmp_path_factory.mktemp("postfix")
    position, replace = request.param
    state = daemon.taught(directory / "state", messages=60)
    with postfix.running(
        position, replace=replace, main=f"{XCLIENT}\ninet_protocols = all\n"
    ) as server:
        file = configuration(directory / "spamguard.yaml", server, position)
        with daemon.running(state, "--config", str(file), port=server.filter_port) as running:
            yield PostfixSite(server, running)


@pytest.mark.parametrize("text", BODIES.values(), ids=BODIES)
def test_bodies_arrive_as_they_were_sent(place: PostfixSite, text: bytes) -> None:
    assert body(place.sent(HEAD + text, b"<a@example.org> BODY=8BITMIME")) == text.replace(
        b"\r\n", b"\n"
    )


@pytest.mark.parametrize("first", [b" folded?", b"From a@b Thu Jan  1 00:00:00 1970"])
def test_a_first_line_that_is_no_field(place: PostfixSite, first: bytes) -> None:
    raw = place.sent(first + b"\r\nSubject: x\r\n\r\ntext\r\n")
    (ours,) = fields(raw, "X-Spamguard")
    assert "\n" not in ours
    assert raw.endswith(b"text\n")


@pytest.mark.parametrize("address", ["192.0.2.77", "2001:db8::77"])
def test_the_original_client_is_in_both_logs(place: PostfixSite, address: str) -> None:
    told = address if "." in address else f"IPV6:{address}"
    place.sent(
        HEAD + b"text\r\n", xclient=b"NAME=mail.stranger.example PORT=4242 ADDR=" + told.encode()
    )
    (ours,) = place.running.lines(f"client={address} ")
    assert "helo=client.example" in ours
    eventually(
        lambda: f"orig_client=mail.stranger.example[{address}]" in place.server.log(),
        "Postfix tells who it was",
    )
    before = len(took_back(place))
    place.sent(HEAD + b"the next client is another one\r\n")
    eventually(lambda: len(took_back(place)) > before, "Postfix tells who it is now")
    assert address not in took_back(place)[-1]


def took_back(place: PostfixSite) -> list[str]:
    """The lines in which Postfix logs from which client it took mail back."""
    return [
        line
        for line in place.server.log().splitlines()
        if "/back/smtpd" in line and "client=" in line
    ]
