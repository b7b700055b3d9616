"""What `spamguard run` shows a person at a terminal: the way into the page."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import urllib.request
from pathlib import Path

from tests.e2e.daemon import COMMAND, ENVIRONMENT, ROOT
from tests.e2e.ports import free_port, wait_for_port
from tests.support.waiting import PATIENCE

CONFIGURATION = """state: {state}
listeners:
  - {{listen: "smtp://127.0.0.1:{smtp}", position: standalone, next_hop: "maildir:{state}/Maildir"}}
web: 127.0.0.1:{web}
"""
LINK = re.compile(r"http://127\.0\.0\.1:\d+/login\?link=\S+")


def test_run_prints_a_link_that_lets_the_operator_in(tmp_path: Path) -> None:
    web = free_port()
    file = tmp_path / "spamguard.yaml"
    file.write_text(CONFIGURATION.format(state=tmp_path / "state", smtp=free_port(), web=web))
    terminal, end = pty.openpty()
    ssh = {"SSH_CONNECTION": "192.0.2.7 50000 192.0.2.9 22"}
    daemon = subprocess.Popen(
        [*COMMAND, "run", "--config", file],
        cwd=ROOT,
        env=ENVIRONMENT | ssh,
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=subprocess.DEVNULL,
    )
    os.close(end)
    try:
        text = ""
        while not (link := LINK.search(text)):
            text += os.read(terminal, 4096).decode()
        assert f"ssh -L {web}:127.0.0.1:{web} " in text
        assert "@192.0.2.9" in text
        wait_for_port(web)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(link[0], timeout=PATIENCE) as page:
            assert page.status == 200
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE)
        os.close(terminal)
