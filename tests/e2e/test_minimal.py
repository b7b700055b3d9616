"""The minimal configurations, each with the Postfix that it is for."""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from spamguard.config.load import load_settings
from spamguard.config.options import Position
from tests.e2e import daemon, postfix, tuned
from tests.e2e.test_positions import fields, send
from tests.support.recipes import ROOT, snippet

FILES = {
    "after-queue": "minimal.yaml",
    "before-queue": "minimal-before-queue.yaml",
    "standalone": "minimal-standalone.yaml",
    "milter": "minimal-milter.yaml",
}
needs_postfix = pytest.mark.skipif(
    shutil.which("postfix") is None, reason="needs Postfix: apt-get install postfix"
)
DOORS = {"standalone": "0.0.0.0:25", "milter": "127.0.0.1:11332"}


def test_there_is_one_for_each_position() -> None:
    found = sorted((ROOT / "config").glob("minimal*.yaml"))
    assert [path.name for path in found] == sorted(FILES.values())
    assert {
        listener.position for path in found for listener in load_settings(path).listeners
    } == set(Position)
    assert all(
        len([line for line in path.read_text().splitlines() if line.strip()[0] != "#"]) < 10
        for path in found
    )


@needs_postfix
def test_one_silent_client_does_not_stop_the_mail_of_others(state: Path, tmp_path: Path) -> None:
    (listener,) = yaml.safe_load((ROOT / "config" / FILES["standalone"]).read_text())["listeners"]
    with (
        postfix.running("standalone", main="default_process_limit = 30\n") as server,
        ExitStack() as stack,
    ):
        listener |= {
            "listen": f"smtp://127.0.0.1:{server.filter_port}",
            "next_hop": f"smtp://127.0.0.1:{server.back_port}",
        }
        file = tmp_path / "spamguard.yaml"
        file.write_text(yaml.safe_dump({"workers": 2, "listeners": [listener]}))
        command = tuned.command((0, "next_hop", {"idle": 1.0}))
        with daemon.running(state, "--config", str(file), port=server.filter_port, command=command):
            for _ in range(60):
                sock = socket.create_connection(
                    ("127.0.0.1", server.filter_port), 30, ("127.0.0.9", 0)
                )
                stack.enter_context(sock).sendall(b"EHLO a.example\r\nMAIL FROM:<a@x.example>\r\n")
            time.sleep(2)  # sessions that wait for the next message have ended
            send(server.filter_port, daemon.unseen("ham", 1)[0])
            server.delivered(1)
            stack.close()


@needs_postfix
@pytest.mark.parametrize("position", FILES)
def test_mail_goes_through(position: str, state: Path, tmp_path: Path) -> None:
    with postfix.running(position) as server:
        door = DOORS.get(position, "127.0.0.1:10025")
        places = {
            "/var/lib/spamguard": str(state),
            "user: spamguard\n": "",
            f"//{door}": f"//127.0.0.1:{server.filter_port}",
            "/home/*/Maildir": f"{server.root}/mail/*",
        }
        if position != "milter":
            places["127.0.0.1:10026"] = f"127.0.0.1:{server.back_port}"
        file = tmp_path / "spamguard.yaml"
        file.write_text(snippet(FILES[position], **places))
        with daemon.running(state, "--config", str(file), port=server.filter_port):
            send(
                server.filter_port if position == "standalone" else server.smtp_port,
                daemon.unseen("spam", 1)[0],
            )
            (raw,) = server.delivered(1)
    assert fields(raw, "X-Spam-Flag") == ["YES"]
