"""`doctor` with the real daemon, which learns and unlearns the message that `doctor` moves."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from spamguard.engine.filter import Filter
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from tests.e2e import daemon, exim
from tests.e2e.exim import PROGRAM
from tests.e2e.ports import free_port
from tests.e2e.test_setup import pytestmark as needs_namespaces
from tests.e2e.test_setup import run_inside
from tests.support.waiting import eventually
from tests.unit.filters import held
from tests.unit.folders.maildirs import maildir


def doctor(state: Path, *arguments: str) -> tuple[int, dict[str, str], str]:
    """Exit status, outcomes by step, and everything it said."""
    done = daemon.ask(state, "doctor", "--json", *arguments)
    assert done.stderr == ""
    return (
        done.returncode,
        {step["name"]: step["outcome"] for step in json.loads(done.stdout)["steps"]},
        done.stdout,
    )


def test_the_daemon_learns_the_move_of_doctor_and_nothing_remains(tmp_path):
    state = daemon.taught(tmp_path / "state")
    with Filter.open(state) as spam_filter:
        before = held(spam_filter)
    port, box = free_port(), maildir(tmp_path / "mail" / "anna", ".Junk")
    words = daemon.one_listener(state, port, f"maildir:{tmp_path}/in", f"{tmp_path}/mail/*")
    with daemon.running(state, *words, port=port) as running:
        running.lines(f"{box}: seen for the first time")
        status, outcomes, told = doctor(state, "--maildir", str(box))
        assert status == 0, told
        names = ("daemon", "delivery", "sighting", "move", "lesson", "taking back")
        assert {name: outcomes[name] for name in names} == dict.fromkeys(names, "ok"), told
        assert len(running.lines("lesson user=anna from='INBOX' to='Junk' class=spam")) == 1
    assert [path for path in box.rglob("*") if path.is_file()] == []
    with Filter.open(state) as spam_filter:
        assert set(spam_filter.ledger.users.count_lessons()) == {""}
        spam_filter.settle()
        assert held(spam_filter) == before


@pytest.mark.nightly
@pytest.mark.skipif(not PROGRAM or os.getuid() != 0, reason="needs root, and an Exim")
@pytest.mark.parametrize(
    ("junk", "filing"), [("", "failed"), ("${if eq{$h_X-Spam-Flag:}{YES}{/.Junk}}", "ok")]
)
def test_whether_spam_is_filed_is_tried_with_exim(tmp_path, monkeypatch, junk, filing):
    """A message passes all doors, is found where it lies, and teaches nothing wherever that is."""
    state, port, back = daemon.taught(tmp_path / "state"), free_port(), free_port()
    with exim.running(port, back, junk) as server:
        box = maildir(server.root / "mail" / "anna", ".Junk")
        for path in (box, *box.rglob("*")):
            shutil.chown(path, exim.USER, exim.USER)
        program = tmp_path / "bin" / "exim4"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {PROGRAM} -C {server.root}/exim.conf "$@"\n')
        program.chmod(0o755)
        monkeypatch.setitem(daemon.ENVIRONMENT, "PATH", f"{program.parent}:{os.environ['PATH']}")
        file = tmp_path / "spamguard.yaml"
        file.write_text(
            f"listeners:\n  - {{listen: smtp://127.0.0.1:{port}, position: after-queue, "
            f"next_hop: smtp://127.0.0.1:{back}, rules: [{{when: spam, action: quarantine}}]}}\n"
            f"watch: [{{maildir: '{server.root}/mail/*', we_file: true}}]\n"
            "authserv_ids: [mx.example.net]\n"
        )
        arguments = ("--config", str(file), "--smtp", f"127.0.0.1:{server.port}")
        with daemon.running(state, "--config", str(file), port=port) as running:
            running.lines(f"{box}: seen for the first time")
            _, outcomes, told = doctor(state, *arguments, "--to", "anna@example.net")
            expected = {"mail": "ok", "judgement": "ok", "authentication": "ok"}
            expected |= {"filing": filing, "removal": "ok"}
            assert {name: outcomes[name] for name in expected} == expected, told
            _, outcomes, told = doctor(state, *arguments, "--to", "nobody@example.org")
            assert (outcomes["mail"], "judgement" in outcomes) == ("failed", False), told

            def seen() -> int:
                with Sightings.open(state / SIGHTINGS_FILE) as sightings:
                    return sum(len(sightings.name_keys(str(box), name)) for name in ("", ".Junk"))

            eventually(lambda: seen() == 0, "the sighting is forgotten")
            assert not running.log().count("lesson ")
        assert [
            path for path in box.rglob("*") if path.is_file() and path.parent.name != "tmp"
        ] == []
    with Filter.open(state) as spam_filter:
        assert spam_filter.ledger.event_count() == daemon.MESSAGES


INSIDE = """
cat >/etc/spamguard/spamguard.yaml <<END
state: /var/lib/spamguard
user: spamguard
watch_socket: /run/spamguard-watch/mailboxes.sock
listeners:
  - {listen: smtp://127.0.0.1:10025, position: after-queue, next_hop: smtp://127.0.0.1:10026}
watch:
  - {maildir: /home/*/Maildir, we_file: true}
END
cat config/postfix/after-queue.main.cf >>/etc/postfix/main.cf
cat config/postfix/after-queue.master.cf >>/etc/postfix/master.cf
spamguard() { "$PYTHON" -m spamguard "$@"; }
install -d -o spamguard-watch /run/spamguard-watch
setpriv --reuid=spamguard-watch --regid=spamguard-watch --clear-groups \\
    --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search \\
    "$PYTHON" -m spamguard open-mailboxes --config /etc/spamguard/spamguard.yaml 2>/run/broker.log &
"$PYTHON" -m spamguard run 2>/run/daemon.log &
daemon=$!
await 'grep -q "serving smtp" /run/daemon.log && grep -q "first time" /run/daemon.log'
prove() {
    (postfix stop && postfix start) >/dev/null 2>&1  # a process that serves keeps its settings
    echo "--- $1"
    spamguard doctor || echo "status $?"
}
postconf -e mailbox_transport= home_mailbox=Maildir/
prove "into INBOX"
postconf -e mailbox_transport=lmtp:unix:private/dovecot-lmtp
mkdir /etc/dovecot/spamguard
cp config/dovecot/lmtp.conf /etc/dovecot/conf.d/95-spamguard-lmtp.conf
cp config/dovecot/file-by-header.sieve /etc/dovecot/spamguard/
sievec /etc/dovecot/spamguard/file-by-header.sieve
doveadm reload
prove "into Junk"
postconf -e hopcount_limit=12
sed -i 's/ *-o content_filter=.*/&spamguard:[127.0.0.1]:10025/' /etc/postfix/master.cf
prove "in a loop"
cat >/etc/spamguard/spamguard.yaml <<END
state: /var/lib/spamguard
user: spamguard
watch_socket: /run/spamguard-watch/mailboxes.sock
scanners:
  - {listen: milter://127.0.0.1:11332, strips_authentication_results: true}
watch:
  - {maildir: /home/*/Maildir, we_file: true}
authserv_ids: [mx.example.org]
END
kill $daemon
wait $daemon || true
"$PYTHON" -m spamguard run 2>/run/daemon.log &
await 'grep -q "serving milter" /run/daemon.log'
postconf -e content_filter= smtpd_milters=inet:127.0.0.1:11332
prove "believed"
echo "--- left"
find /home/anna/Maildir -type f ! -name 'dovecot*' ! -name maildirfolder ! -name subscriptions
spamguard status --json | grep -o '"events": [0-9]*'
"""


@needs_namespaces
def test_what_postfix_and_dovecot_do_with_spam_is_tried(tmp_path):
    told = run_inside(INSIDE, tmp_path)
    parts = dict(part.partition("\n")[::2] for part in told.split("--- ")[1:])
    steps = {
        name: {line[8:].partition(":")[0]: line for line in part.splitlines()}
        for name, part in parts.items()
    }
    for name in ("into INBOX", "into Junk"):
        for step in ("mail", "judgement", "removal"):
            assert steps[name][step].startswith("ok "), told
    assert steps["into INBOX"]["filing"].startswith("FAILED "), told
    assert parts["into INBOX"].endswith("status 1\n"), told
    assert steps["into Junk"]["filing"].startswith("ok "), told
    assert "status" not in parts["into Junk"], told
    judged = re.search(r"judged (\d+) times", steps["in a loop"]["judgement"])
    assert judged is not None, told
    assert int(judged[1]) > 1
    assert steps["believed"]["authentication"].startswith("FAILED "), told
    assert parts["left"] == '"events": 0\n', told
