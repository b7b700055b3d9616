"""The daemon in each of its positions, with a real Postfix made from the snippets of
config/postfix.
"""

from __future__ import annotations

import re
import shutil
import smtplib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import daemon, postfix
from tests.e2e.daemon import Daemon
from tests.e2e.peers import Hop
from tests.e2e.postfix import Postfix
from tests.support.recipes import snippet
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.skipif(
    shutil.which("postfix") is None, reason="needs Postfix: apt-get install postfix"
)

MINIMAL = {  # configurations by position, and their doors
    "after-queue": ("minimal.yaml", "127.0.0.1:10025"),
    "before-queue": ("minimal-before-queue.yaml", "127.0.0.1:10025"),
    "standalone": ("minimal-standalone.yaml", "0.0.0.0:25"),
    "milter": ("minimal-milter.yaml", "127.0.0.1:11332"),
}


def configuration(path: Path, server: Postfix, position: str, extra: str = "") -> Path:
    path.write_text(
        f"listeners:\n  - listen: smtp://127.0.0.1:{server.filter_port}\n    position: {position}\n"
        f"    next_hop: smtp://127.0.0.1:{server.back_port}\n{extra}"
    )
    return path


@contextmanager
def placed(
    position: str,
    state: Path,
    extra: str = "",
    *,
    replace: dict[str, str] | None = None,
    main: str = "",
) -> Iterator[tuple[Postfix, Daemon]]:
    """Both, one behind the other. extra: more lines of the listener. replace, main: as of
    `postfix.running`.
    """
    with postfix.running(position, replace=replace, main=main) as server:
        file = configuration(state.with_name("spamguard.yaml"), server, position, extra)
        with daemon.running(state, "--config", str(file), port=server.filter_port) as running:
            yield server, running


@pytest.fixture(scope="module")
def plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Postfix, Daemon]]:
    """Both servers in one position, by its smallest configuration."""
    state = daemon.taught(tmp_path_factory.mktemp("plain") / "state")
    with postfix.running(request.param) as server:
        name, door = MINIMAL[request.param]
        places = {
            "/var/lib/spamguard": str(state),
            "user: spamguard\n": "",
            f"//{door}": f"//127.0.0.1:{server.filter_port}",
            "/home/*/Maildir": f"{server.root}/mail/*",
        }
        if request.param != "milter":
            places["127.0.0.1:10026"] = f"127.0.0.1:{server.back_port}"
        file = state.with_name("spamguard.yaml")
        file.write_text(snippet(name, **places))
        with daemon.running(state, "--config", str(file), port=server.filter_port) as running:
            yield server, running


def comes(server: Postfix, before: list[bytes], user: str = "anna") -> bytes:
    """The message that comes besides those that had come before."""
    return next(raw for raw in server.delivered(len(before) + 1, user) if raw not in before)


def send(
    port: int,
    raw: bytes,
    to: tuple[str, ...] = ("anna@example.net",),
    sender: str = "someone@example.org",
) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
        client.sendmail(sender, list(to), raw)


def fields(raw: bytes, name: str) -> list[str]:
    head = raw.replace(b"\r\n", b"\n").partition(b"\n\n")[0].decode("utf-8", "replace")
    return re.findall(rf"^{name}:[ \t]*(.*(?:\n[ \t].*)*)", head, re.MULTILINE | re.IGNORECASE)


def body(raw: bytes) -> bytes:
    return raw.replace(b"\r\n", b"\n").partition(b"\n\n")[2]


@pytest.mark.parametrize("plain", MINIMAL, indirect=True)
def test_mail_is_judged_tagged_and_delivered(
    plain: tuple[Postfix, Daemon], request: pytest.FixtureRequest
) -> None:
    server, running = plain
    before, said = server.delivered(0), running.log().count("verdict=")
    door = (
        server.filter_port
        if request.node.callspec.params["plain"] == "standalone"
        else server.smtp_port
    )
    spam, ham = daemon.unseen("spam", 1)[0], daemon.unseen("ham", 1)[0]
    forged = b"X-Spam-Flag: NO\r\nx-spam-STATUS: No,\r\n score=-99\r\nX-Spamguard: ham\r\n"
    send(door, forged + spam)
    first = comes(server, before)
    send(door, b"X-Spam-Flag: YES\r\n" + ham)
    second = comes(server, [*before, first])
    lines = running.lines("verdict=", said + 2)[said:]
    assert fields(first, "X-Spam-Flag") == ["YES"]
    assert fields(first, "X-Spam-Status")[0].startswith("Yes, score=")
    assert fields(second, "X-Spam-Flag") == []
    assert fields(second, "X-Spam-Status")[0].startswith("No, score=")
    for raw, sent, line in ((first, spam, lines[0]), (second, ham, lines[1])):
        (ours,) = fields(raw, "X-Spamguard")
        assert re.fullmatch(r"(spam|ham|unsure); id=[0-9a-v]{16}; k=\w+; s=[\w-]+", ours)
        assert ours.split("id=")[1][:16] in line
        assert body(raw).rstrip(b"\n") == body(sent).rstrip(b"\n")


def test_before_queue_a_refusal_reaches_the_sender(state: Path) -> None:
    """And tells how to find the copy that is kept, to release it and to learn from it."""
    rules = (
        "    rules: [{when: spam, from_probability: 0.95, action: reject}]\n"
        "reject: {text: 'ask at https://example.net/mail', keep: 7d}\n"
    )
    whole = {"    -o smtpd_proxy_options=speed_adjust\n": ""}
    with placed("before-queue", state, rules, replace=whole) as (server, running):
        with pytest.raises(smtplib.SMTPDataError) as refused:
            send(server.smtp_port, spam := daemon.unseen("spam", 1)[0])
        said = refused.value.smtp_error.decode()
        (name,) = re.fullmatch(
            r"5\.7\.1 Message (\w{16}) refused .*: ask at https://example.net/mail", said
        ).groups()
        assert refused.value.smtp_code == 550
        assert name in running.lines("action=reject")[0]
        send(server.smtp_port, daemon.unseen("ham", 1)[0])
        assert len(server.delivered(1)) == 1
        assert name in daemon.command(state, "quarantine", "list")
        hop = f"smtp://127.0.0.1:{server.back_port}"
        daemon.command(state, "quarantine", "release", name, "--next-hop", hop)
        released = server.delivered(2)[1]
        assert body(released) == body(spam)
        assert fields(released, "X-Spam-Flag") == []
        assert fields(released, "X-Spamguard") == [f"ham; id={name}; by=person"]
        assert fields(released, "Subject") == fields(spam, "Subject")


def test_recipients_come_one_by_one_if_configured(state: Path, tmp_path: Path) -> None:
    """Without that all recipients but the first are deferred, because there is one reply for all
    after the data.
    """
    asked = {"#spamguard_destination_recipient_limit": "spamguard_destination_recipient_limit"}
    with postfix.running("after-queue", replace=asked) as server:
        file = tmp_path / "spamguard.yaml"
        listener = (
            f"listen: smtp://127.0.0.1:{server.filter_port}, position: after-queue, next_hop: "
            f"'maildir:{tmp_path}/Maildir'"
        )
        file.write_text(f"listeners:\n  - {{{listener}}}\n")
        with daemon.running(state, "--config", str(file), port=server.filter_port) as running:
            send(
                server.smtp_port,
                daemon.unseen("ham", 1)[0],
                ("anna@example.net", "ben@example.net"),
            )
            running.lines("verdict=", 2)
            eventually(lambda: "is empty" in server.queue())
        assert "status=deferred" not in server.log()


def test_mail_just_below_the_limit_of_size_does_not_bounce(state: Path) -> None:
    """It has our header fields when it comes back."""
    with placed("after-queue", state, main="message_size_limit = 100000\n") as (server, _):
        with smtplib.SMTP("127.0.0.1", server.smtp_port, timeout=PATIENCE) as client:
            for length in range(100_000, 95_000, -100):  # Postfix counts some bytes of its own
                raw = b"Subject: large\r\n\r\n"
                try:
                    client.sendmail(
                        "someone@example.org",
                        ["anna@example.net"],
                        raw + (b"y" * 98 + b"\r\n") * (length // 100),
                    )
                    break
                except smtplib.SMTPResponseException:
                    pass
        (found,) = server.delivered(1)
    assert fields(found, "X-Spamguard")


RATES = "smtpd_client_message_rate_limit = 1\nsmtpd_client_event_limit_exceptions = 192.0.2.0/24\n"
OF_CLIENTS = "smtpd_client_restrictions = check_client_access inline:{ {127.0.0.1 = REJECT} }\n"
OF_HELLOS = "smtpd_helo_restrictions = permit_mynetworks, reject_non_fqdn_helo_hostname\n"


@pytest.mark.parametrize(
    ("position", "main"),
    [
        pytest.param("after-queue", RATES, id="after-queue: so many a minute"),
        pytest.param(
            "standalone",
            RATES + OF_CLIENTS + OF_HELLOS,
            id="standalone: so many a minute, none of such clients and hellos",
        ),
    ],
)
def test_restrictions_on_clients_do_not_apply_to_spamguard(
    state: Path, position: str, main: str
) -> None:
    with placed(position, state, "    hostname: filter\n", main=main) as (server, _):
        with smtplib.SMTP("127.0.0.1", server.filter_port) as client:
            assert client.ehlo()[1].split()[0] == b"filter"
        for message in daemon.unseen("ham", 2):
            send(server.filter_port, message)
        server.delivered(2)


def test_rules_for_other_destinations_do_not_apply_to_spamguard(
    state: Path, tmp_path: Path
) -> None:
    """Neither is it changed, nor is spamguard reached as other servers are."""
    (tmp_path / "checks").write_text("/^Subject:/ REPLACE Subject: outwards\n")
    main = (
        "smtp_generic_maps = inline:{ {someone@example.org = outwards@example.org} }\n"
        f"smtp_header_checks = regexp:{tmp_path}/checks\n"
        "smtp_tls_wrappermode = yes\nsmtp_tls_security_level = encrypt\n"
        "smtp_tls_policy_maps = static:encrypt\n"
        "smtp_bind_address = 127.0.0.2\n"
    )
    with placed("after-queue", state, "    clients: [127.0.0.1/32]\n", main=main) as (server, _):
        send(server.smtp_port, b"Subject: inwards\r\nFrom: someone@example.org\r\n\r\nhello\r\n")
        (raw,) = server.delivered(1)
    assert fields(raw, "Subject") == ["inwards"]
    assert b"outwards" not in raw


def test_mail_waits_while_spamguard_is_down(state: Path, tmp_path: Path) -> None:
    """A relay that is configured for other unreachable servers does not get it."""
    with (
        Hop().serving() as fallback,
        postfix.running(
            "after-queue", main=f"smtp_fallback_relay = [127.0.0.1]:{fallback.port}\n"
        ) as server,
    ):
        send(server.smtp_port, daemon.unseen("ham", 1)[0])
        eventually(lambda: "status=" in server.log())
        file = configuration(tmp_path / "spamguard.yaml", server, "after-queue")
        with daemon.running(state, "--config", str(file), port=server.filter_port):
            server.delivered(1)
    assert fallback.messages == []


@pytest.mark.parametrize(
    "main",
    [
        pytest.param("always_bcc = ben@example.net\n", id="for the archive"),
        pytest.param(
            (
                "virtual_alias_maps = inline:{ {anna@example.net = anna@example.net, "
                "ben@example.net} }\n"
            ),
            id="by an alias",
        ),
    ],
)
def test_copies_are_made_once(state: Path, main: str) -> None:
    """Behind the queue every message comes by Postfix twice."""
    with placed("after-queue", state, main=main) as (server, _):
        send(server.smtp_port, daemon.unseen("ham", 1)[0])
        server.delivered(1)
        server.delivered(1, "ben")
        eventually(lambda: "is empty" in server.queue())
        assert [len(server.delivered(1, user)) for user in ("anna", "ben")] == [1, 1]
