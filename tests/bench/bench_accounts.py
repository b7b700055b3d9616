"""How quick and how light accounts are, on a real Dovecot of this machine.

    python -m tests.bench.bench_accounts quick [--messages 100]
    python -m tests.bench.bench_accounts large --messages 100000
    python -m tests.bench.bench_accounts light [--accounts 100] [--seconds 900] [--tls]

`quick`: from a message's coming to its verdict, and to Junk; from a person's move to the lesson.
`large`: the first listing of a folder, and a restart when nothing has changed. `light`: memory,
processor and commands of the process while nothing happens; with TLS commands are not counted.

2 cores with other work beside: verdict p50 0.5 s, p95 1.4 s; lesson p50 1.5 s, p95 2.7 s; 20,000
messages first 5 to 9 s, again 0.7 s; 100 accounts 52 MB, 0.2 % of a core. Where there is no
LIST-STATUS, each folder costs 12 times STATUS an hour. Dovecot says "Still here" in IDLE every two
minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from spamguard.config.accounts import Mode
from spamguard.config.options import ACCOUNTS_DIRECTORY
from spamguard.imap.account import AccountWatch
from spamguard.imap.bodies import RecentBodies
from spamguard.imap.judge import Answer
from tests.e2e import daemon, imap_accounts
from tests.e2e.daemon import unseen
from tests.e2e.imap_accounts import append
from tests.e2e.moving import mail_program, ok
from tests.support import imap_proxy
from tests.support.certificates import self_signed
from tests.support.processes import children
from tests.support.waiting import eventually
from tests.unit.folders.maildirs import deliver


def quick(state: Path, messages: int) -> Iterator[str]:
    judged, filed, learnt = list[float](), list[float](), list[float]()
    chance = random.Random(1)
    with (
        imap_accounts.server() as server,
        mail_program(server) as client,
        imap_accounts.running(state, server, "anna") as running,
    ):
        running.lines("seen for the first time")
        file = state / ACCOUNTS_DIRECTORY / "anna@example.net.sqlite"
        junk = server.root / "mail" / "anna" / ".Junk"
        known = "SELECT count(*), total(spam) FROM messages WHERE hash IS NOT NULL"
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as records:
            for number, raw in enumerate(unseen("spam", messages), 1):
                time.sleep(chance.random() * 2)
                append(client, raw)
                began = time.monotonic()
                eventually(lambda number=number: records.execute(known).fetchone()[0] >= number)
                judged.append(time.monotonic() - began)
                count = records.execute(known).fetchone()[1]
                eventually(lambda count=count: _count(junk) >= count)
                filed.append(time.monotonic() - began)
        yield _line("from coming to the verdict", judged)
        yield _line("from coming to Junk", filed)
        for number in range(1, _count(junk) + 1):
            time.sleep(chance.random() * 2)
            ok(client.select("Junk"))
            uid = client.uid("SEARCH", "ALL")[1][0].split()[0].decode()
            ok(client.uid("MOVE", uid, "INBOX"))
            began = time.monotonic()
            running.lines("lesson user=", number, 600)
            learnt.append(time.monotonic() - began)
    yield _line("from a person's move to the lesson", learnt)


def large(state: Path, messages: int) -> Iterator[str]:
    with imap_accounts.server() as server:
        with mail_program(server) as client:
            ok(client.select("INBOX"))
            raw = unseen("ham", 1)[0]
            for number in range(messages):
                deliver(server.root / "mail" / "anna", b"X-Number: %d\r\n" % number + raw, "cur")
            ok(client.select("INBOX"))  # Dovecot's own index of so many takes time, too
            client.uid("FETCH", "1:*", "(INTERNALDATE X-GUID)")
        for unknown in ((), ("X-GUID",)):
            name = "with X-GUID" if not unknown else "without"
            with imap_proxy.before(server.imap_port, unknown) as proxy:
                through = replace(server, imap_port=proxy.port)
                account = imap_accounts.account(through, state, mode=Mode.LOOK, name="anna")
                place = Path(tempfile.mkdtemp(dir=state))
                for what in ("first listing", "restart without changes", "one message more"):
                    bodies = RecentBodies()
                    arguments = (account, place, lambda *_: Answer(), lambda *_: None, bodies)
                    with closing(AccountWatch(*arguments)) as watch:
                        before, began = len(proxy.commands), time.monotonic()
                        watch.step()
                        took = time.monotonic() - began
                        assert watch.is_listed, watch.status
                    count = len(proxy.commands) - before
                    yield f"{messages:,}, {name}: {what}: {took:.2f} s, {count} commands"
                    if what.startswith("restart"):
                        with mail_program(server) as client:
                            append(client, raw)


def light(state: Path, accounts: int, seconds: float, *, tls: bool) -> Iterator[str]:
    names = [f"user{number}" for number in range(accounts)]
    pem = self_signed(state.parent)
    extra = f"ssl = yes\nssl_cert = <{pem}\nssl_key = <{pem}\n" if tls else ""
    extra += "service imap-login {\n service_count = 0\n client_limit = 1000\n}\n"
    extra += "service imap {\n process_limit = 1000\n}\nmail_max_userip_connections = 0\n"
    options = {"server": "localhost", "tls": "starttls"} if tls else {}
    os.environ["SSL_CERT_FILE"] = daemon.ENVIRONMENT["SSL_CERT_FILE"] = str(pem)
    with imap_accounts.server(extra) as server, imap_proxy.before(server.imap_port) as proxy:
        through = server if tls else replace(server, imap_port=proxy.port)
        with imap_accounts.running(state, through, *names, **options) as running:
            running.lines("seen for the first time", accounts, 300)
            time.sleep(30)
            (process,) = children(running.process.pid, "spamguard.daemon.imap")
            before, count = _processor(process), len(proxy.commands)
            time.sleep(seconds)
            share = (_processor(process) - before) / seconds
            yield f"{accounts} accounts, {_memory(process):.0f} MB, {share:.2%} of a core"
            told = Counter(" ".join(words.split()[:2]) for _, words in proxy.commands[count:])
            hourly = {name: n / 2 / accounts * 3600 / seconds for name, n in told.items()}
            yield f"an hour and connection: {sum(hourly.values()):.1f} commands; " + ", ".join(
                f"{name} {n:.1f}" for name, n in sorted(hourly.items())
            )


def _count(box: Path) -> int:
    return sum(len(list((box / part).glob("*"))) for part in ("new", "cur"))


def _line(what: str, times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=20)
    return f"{what}: p50 {cuts[9]:.2f} s, p95 {cuts[18]:.2f} s, most {max(times):.2f} s"


def _processor(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _memory(process: int) -> float:
    """What it has in memory of its own, in MB."""
    return int(Path(f"/proc/{process}/smaps_rollup").read_text().split("Pss:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["quick", "large", "light"])
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--accounts", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--tls", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        state = daemon.taught(Path(place) / "state")
        if given.what == "light":
            lines = light(state, given.accounts, given.seconds, tls=given.tls)
        else:
            lines = (quick if given.what == "quick" else large)(state, given.messages)
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
