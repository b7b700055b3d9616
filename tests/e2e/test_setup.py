"""`spamguard setup` with the real Postfix and Dovecot of this machine: from nothing to a lesson,
from each position to each other, and out again. And with Debian's Exim.

It runs in namespaces of its own: the changes of /etc, /var, /home and /run go into a file system
that ends with it, and its network has no other machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.recipes import UNPACKED

ROOT = Path(__file__).parents[2]
DEBIANS_EXIM = [UNPACKED / f"exim4-{part}" for part in ("daemon-light", "config", "base")]
PROGRAMS = ("unshare", "postconf", "dovecot", "sievec", "systemd-sysusers")

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, PROGRAMS)),
    reason=f"needs root and {', '.join(PROGRAMS)}",
)

NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
PREPARE = """
set -e
mount -t tmpfs layers "$1"
for d in etc var home run usr; do
    mkdir -p "$1/$d.upper" "$1/$d.work"
    unpacked=$(for place in $EXIM; do [ ! -d "$place/$d" ] || printf '%s:' "$place/$d"; done)
    mount -t overlay o -o "lowerdir=$unpacked/$d,upperdir=$1/$d.upper,workdir=$1/$d.work" "/$d"
done
mkdir /run/checkout # where the daemon's user can read it
mount --bind . /run/checkout
cd /run/checkout
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
[ "$EXIM" ] || postfix start >/dev/null 2>&1
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
"$PYTHON" -m spamguard setup --apply || true
echo "--- applied"
install -d -o spamguard-watch /run/spamguard-watch
setpriv --reuid=spamguard-watch --regid=spamguard-watch --clear-groups \\
    --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search \\
    "$PYTHON" -m spamguard open-mailboxes --config /etc/spamguard/spamguard.yaml 2>/run/broker.log &
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
    rights=
    if [ $1 = open-mailboxes ]; then
        install -d -o spamguard-watch /run/spamguard-watch
        rights="setpriv --reuid=spamguard-watch --regid=spamguard-watch --clear-groups
            --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search"
    fi
    setsid $rights "$PYTHON" -m spamguard $1 --config /etc/spamguard/spamguard.yaml \\
        >>/run/$1.log 2>&1 </dev/null &
    echo $! >/run/$1.pid
    for _ in $(seq 300); do grep -q "$2" /run/$1.log && return; sleep 0.1; done
    exit 1
}
end() {
    [ ! -e /run/$1.pid ] || kill $(cat /run/$1.pid) 2>/dev/null || true
    while [ -e /run/$1.pid ] && kill -0 $(cat /run/$1.pid) 2>/dev/null; do sleep 0.1; done
}
case "$*" in
"stop spamguard.socket spamguard.service") end run ;;
"restart spamguard-watch.service") end open-mailboxes; serve open-mailboxes "opening" ;;
"start spamguard.socket spamguard.service") serve run "serving" ;;
*"restart exim4.service") SYSTEMCTL_SKIP_REDIRECT=1 /etc/init.d/exim4 restart ;;
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
BEGIN = """
mkdir -p /run/systemd/system /run/bin
printf '%s' "$SYSTEMCTL" >/run/bin/systemctl
chmod +x /run/bin/systemctl
export PATH=/run/bin:$PATH
setup() { "$PYTHON" -m spamguard setup --apply "$@" </dev/null >/run/setup.log 2>&1 || [ $? = 1 ]; }
# Twenty messages, half of them while the setup changes
change() {
    echo "--- $*"
    : >/run/setup.log
    "$PYTHON" -c "$SENDER" during 10 "$LAST_COMMAND" &
    sender=$!
    setup "$@"
    wait $sender
    "$PYTHON" -c "$SENDER" after 10 ""
    await '[ $(ls /home/anna/Maildir/new | wc -l) -ge 20 ]'
    await 'mailq | grep -q "queue is empty" || [ -z "$(mailq)" ]'
    grep -hE '^(Subject|X-Spamguard):' /home/anna/Maildir/new/*
    rm /home/anna/Maildir/new/*
}
"""
POSTFIX = """
LAST_COMMAND="postfix reload"
# Another milter, which is not there
postconf -e "smtpd_milters = inet:127.0.0.1:9" "milter_default_action = accept" \\
    'non_smtpd_milters = $smtpd_milters'
postconf -F smtp/inet/process_limit=50
cp /etc/postfix/main.cf /run/main.cf
postconf -M | sort >/run/services
find /etc/dovecot | sort >/run/files
cat config/postfix/after-queue.main.cf >>/etc/postfix/main.cf # as people do by hand
cat config/postfix/after-queue.master.cf >>/etc/postfix/master.cf
postfix reload
walk="after-queue before-queue milter - before-queue after-queue"
for position in $walk milter before-queue - milter after-queue; do
    if [ $position = - ]; then change --remove; else change --position $position; fi
done
systemctl stop spamguard.socket spamguard.service # what is queued now names a filter that is away
change --remove
echo "=== as it was:"
diff /etc/postfix/main.cf /run/main.cf
postconf -M | sort | diff - /run/services
find /etc/dovecot | sort | diff - /run/files
echo "nothing is left"
"""
EXIM = """
LAST_COMMAND="exim4 restart"
echo example.net >/etc/mailname
install -d -o Debian-exim -g Debian-exim -m 750 /var/lib/exim4 /var/spool/exim4 /var/log/exim4
chmod u+s /usr/sbin/exim4
for split in false true; do
    cat >/etc/exim4/update-exim4.conf.conf <<END
dc_eximconfig_configtype='internet'
dc_other_hostnames='example.net'
dc_local_interfaces='$([ $split = true ] || echo "127.0.0.1 ; ::1")'
dc_readhost=''
dc_relay_domains=''
dc_minimaldns='false'
dc_relay_nets=''
dc_smarthost=''
CFILEMODE='644'
dc_use_split_config='$split'
dc_hide_mailname=''
dc_mailname_in_oh='true'
dc_localdelivery='maildir_home'
END
    update-exim4.conf
    service exim4 restart
    rm -rf /run/exim4.before
    cp -r /etc/exim4 /run/exim4.before
    ports() { ss -Hltn "sport = :25 or sport = :10026" | awk '{print $4}' | sort | xargs; }
    await '[ "$(ports)" ]'
    echo "=== ports: $(ports)"
    change --server exim
    echo "=== ports: $(ports)"
    change --remove
    echo "=== ports: $(ports)"
    diff -r -x '*.before-spamguard*' /etc/exim4 /run/exim4.before
    echo "=== nothing is left"
done
"""
CHECKOUT = "/run/checkout"
ENVIRONMENT = {
    "PYTHON": sys.executable.replace(str(ROOT), CHECKOUT),
    "PYTHONPATH": CHECKOUT,
    "SYSTEMCTL": SYSTEMCTL,
    "SENDER": SENDER,
    "EXIM": "",
}


def run_inside(script: str, directory: Path, **environment: str) -> str:
    """What a script prints in namespaces of its own."""
    (directory / "layers").mkdir()
    done = subprocess.run(
        [*NAMESPACES, "bash", "-c", PREPARE + script, "bash", directory / "layers"],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | environment,
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
    assert "Server postfix, position after-queue, mailboxes /home/*/Maildir." in applied, output
    assert "kept /etc/postfix/main.cf.before-spamguard" in applied
    assert "class=spam" in learnt, output
    assert "FAILED" not in proved, output
    assert " + " not in again, "nothing is left to do"
    assert again.endswith("--- changed: \n"), output


def steps(output: str) -> list[tuple[str, list[str], int]]:
    """Of each change: what it was, the subjects of the mail that came, and how many have our field,
    each once.
    """
    found = []
    for part in re.findall("--- ((?:(?!---|===).)*)", output, re.DOTALL):
        subjects = re.findall(r"^Subject: (.*)", part, re.MULTILINE)
        found.append((part.partition("\n")[0], sorted(subjects), part.count("\nX-Spamguard: ")))
    return found


SENT = sorted(f"{when}.{number}" for when in ("during", "after") for number in range(10))


@pytest.mark.nightly
def test_each_position_follows_each_other_and_is_removed(tmp_path: Path) -> None:
    output = run_inside(BEGIN + POSTFIX, tmp_path)
    changes = steps(output)
    assert len(changes) == 12, output[-5000:]
    for what, subjects, judged in changes:
        assert subjects == SENT, (what, output[-5000:])
        assert judged <= 10 if "remove" in what else 10 <= judged <= 20, what
    assert output.endswith("=== as it was:\nnothing is left\n")


@pytest.mark.nightly
@pytest.mark.skipif(not all(map(Path.is_dir, DEBIANS_EXIM)), reason="needs .ci/packages")
def test_exim_passes_mail_and_is_as_it_was(tmp_path: Path) -> None:
    output = run_inside(BEGIN + EXIM, tmp_path, EXIM=" ".join(map(str, DEBIANS_EXIM)))
    changes = steps(output)
    assert len(changes) == 4, output[-5000:]
    for what, subjects, judged in changes:
        assert subjects == SENT, (what, output[-5000:])
        assert judged <= 10 if "remove" in what else 10 <= judged <= 20, what
    here, everywhere = "127.0.0.1:25 [::1]:25", "0.0.0.0:25 [::]:25"
    assert [line.split(" ", 2)[2] for line in re.findall("=== ports.*", output)] == [
        here,
        f"127.0.0.1:10026 {here}",
        here,
        everywhere,
        "0.0.0.0:25 127.0.0.1:10026 [::]:25",
        everywhere,
    ]
    assert output.count("nothing is left") == 2
