"""The minimal configurations, each with the Postfix that it is for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e import daemon, postfix
from tests.e2e.test_positions import fields, send
from tests.support.recipes import snippet

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
