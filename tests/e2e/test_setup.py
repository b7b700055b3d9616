"""`spamguard setup` with the real Postfix and Dovecot of this machine, from nothing to a lesson.

It runs in namespaces of its own: the changes of /etc, /var, /home and /run go into a file system
that ends with it, and its network has no other machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("unshare", "script", "postconf", "dovecot", "sievec", "systemd-sysusers")

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)),
    reason=f"needs root and {', '.join(PROGRAMS)}",
)

NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
PREPARE = """
set -e
mount -t tmpfs layers "$1"
for d in etc var home run; do
    mkdir -p "$1/$d.upper" "$1/$d.work"
    mount -t overlay o -o "lowerdir=/$d,upperdir=$1/$d.upper,workdir=$1/$d.work" "/$d"
done
ip link set lo up
useradd --create-home anna
su anna -c 'mkdir -p ~/Maildir/cur ~/Maildir/new ~/Maildir/tmp'
su anna -c 'mkdir -p ~/Maildir/.Junk/cur ~/Maildir/.Junk/new ~/Maildir/.Junk/tmp'
cat >/etc/postfix/main.cf <<END
compatibility_level = 3.6
myhostname = mx.example.org
mydestination = example.net
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
alias_maps =
alias_database =
notify_classes =
mailbox_transport = lmtp:unix:private/dovecot-lmtp
maillog_file = /var/log/postfix.log
END
sed -i '/^postlog/d' /etc/postfix/master.cf
echo 'postlog unix-dgram n - n - 1 postlogd' >>/etc/postfix/master.cf
sed -i 's/^ssl_/#ssl_/' /etc/dovecot/conf.d/10-ssl.conf
cat >/etc/dovecot/conf.d/94-here.conf <<END
mail_location = maildir:~/Maildir
first_valid_uid = 500
log_path = /var/log/dovecot.log
ssl = no
auth_username_format = %n
service lmtp {
  unix_listener /var/spool/postfix/private/dovecot-lmtp {
    mode = 0600
    user = postfix
  }
}
END
postfix start >/dev/null 2>&1
dovecot >/dev/null 2>&1
cp systemd/*.service systemd/*.socket /etc/systemd/system/
cp -r systemd/sysusers.d systemd/tmpfiles.d /etc/
systemd-sysusers && systemd-tmpfiles --create spamguard.conf
spamguard() { "$PYTHON" -m spamguard --state /var/lib/spamguard "$@"; }
await() {
    for _ in $(seq 600); do
        if eval "$1"; then return; fi
        sleep 0.1
    done
    echo "never: $1"
    tail -50 /run/*.log /var/log/postfix.log /var/log/dovecot.log
    exit 1
}
"""
FIRST = """
script --quiet --return --command "$PYTHON -m spamguard setup --apply" /dev/null <<END || true



END
echo "--- applied"
spamguard open-mailboxes --config /etc/spamguard/spamguard.yaml 2>/run/broker.log &
spamguard run --config /etc/spamguard/spamguard.yaml 2>/run/daemon.log &
await 'grep -q "serving smtp" /run/daemon.log'
python3 - <<END
import smtplib
smtplib.SMTP("127.0.0.1", 25).sendmail(
    "post@roofs.example", "anna@example.net", "Subject: Solar panels\\n\\nFor your street.\\n"
)
END
await 'grep -qs "^X-Spamguard: unsure" /home/anna/Maildir/new/*'
await 'spamguard status | grep -q "1 mailbox"'
su anna -c 'mv ~/Maildir/new/* ~/Maildir/.Junk/cur/'
await 'grep "lesson user=anna" /run/daemon.log'
echo "--- learnt"
spamguard doctor --config /etc/spamguard/spamguard.yaml
echo "--- again"
cp -r /etc /run/etc
"$PYTHON" -m spamguard setup </dev/null
echo "--- changed: $(diff -r /etc /run/etc)"
"""

# Does what systemd does with the units: there is none in these namespaces.
SYSTEMCTL = """#!/bin/bash
serve() {
    : >/run/$1.log
    setsid "$PYTHON" -m spamguard $1 --config /etc/spamguard/spamguard.yaml \\
        >>/run/$1.log 2>&1 </dev/null &
    echo $! >/run/$1.pid
    until grep -q "$2" /run/$1.log; do sleep 0.1; done
}
end() {
    [ ! -e /run/$1.pid ] || kill $(cat /run/$1.pid) 2>/dev/null || true
    while [ -e /run/$1.pid ] && kill -0 $(cat /run/$1.pid) 2>/dev/null; do sleep 0.1; done
}
case "$*" in
"stop spamguard.socket spamguard.service") end run ;;
"restart spamguard-watch.service") end open-mailboxes; serve open-mailboxes "opening" ;;
"start spamguard.socket spamguard.service") serve run "serving" ;;
esac
"""
# What a mail server does: it tries again. The first and the last message share a connection, which
# is open while Postfix reads its files again.
SENDER = """
import smtplib, sys, time
def connect():
    return smtplib.SMTP("127.0.0.1", 25, timeout=60)
def send(client, number):
    text = f"Subject: {sys.argv[1]}.{number}\\n\\nFor your street.\\n"
    client.sendmail("post@roofs.example", ["anna@example.net"], text)
def send_new(number):
    for _ in range(300):
        try:
            with connect() as client:
                return send(client, number)
        except OSError as error:
            if "550" in str(error) or "554" in str(error):
                raise
            time.sleep(0.2)
    raise SystemExit("it never got through")
count, reload = int(sys.argv[2]), sys.argv[3]
held = connect()
send(held, 0)
for number in range(1, count - 1):
    send_new(number)
    time.sleep(0.3 if reload else 0)
while reload and reload not in open("/run/setup.log").read():
    time.sleep(0.3)
try:
    send(held, count - 1)
except OSError:
    send_new(count - 1)
"""
WALK = """
mkdir -p /run/systemd/system /run/bin
printf '%s' "$SYSTEMCTL" >/run/bin/systemctl
chmod +x /run/bin/systemctl
export PATH=/run/bin:$PATH
setup() { "$PYTHON" -m spamguard setup --apply "$@" </dev/null >/run/setup.log 2>&1 || [ $? = 1 ]; }
cp /etc/postfix/main.cf /run/main.cf
postconf -M | sort >/run/services
find /etc/dovecot | sort >/run/files
walk="after-queue before-queue milter - before-queue after-queue"
for position in $walk milter before-queue - milter after-queue -; do
    echo "to $position"
    : >/run/setup.log
    "$PYTHON" -c "$SENDER" during 10 "postfix reload" &
    sender=$!
    if [ $position = - ]; then setup --remove; else setup --position $position; fi
    wait $sender
    "$PYTHON" -c "$SENDER" after 10 ""
    await 'mailq | grep -q "queue is empty"'
    grep -hE '^(Subject|X-Spamguard):' /home/anna/Maildir/new/*
    rm /home/anna/Maildir/new/*
    postconf -h content_filter smtpd_milters
done
echo "as it was:"
diff /etc/postfix/main.cf /run/main.cf
postconf -M | sort | diff - /run/services
find /etc/dovecot | sort | diff - /run/files
ls /etc/postfix /etc/spamguard
"""


def run_inside(script: str, directory: Path) -> str:
    """What a script prints in namespaces of its own."""
    (directory / "layers").mkdir()
    done = subprocess.run(
        [*NAMESPACES, "bash", "-c", PREPARE + script, "bash", directory / "layers"],
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_from_nothing_to_the_first_lesson(tmp_path: Path) -> None:
    output = run_inside(FIRST, tmp_path)
    applied, _, rest = output.partition("--- applied")
    learnt, _, rest = rest.partition("--- learnt")
    proved, _, again = rest.partition("--- again")
    assert applied.count("]: ") == 3, output  # questions
    assert "kept /etc/postfix/main.cf.before-spamguard" in applied
    assert "class=spam" in learnt, output
    assert "FAILED" not in proved, output
    assert " + " not in again, "nothing is left to do"
    assert again.endswith("--- changed: \n"), output
