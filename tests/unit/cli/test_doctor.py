"""`doctor`."""

from __future__ import annotations

from spamguard.doctor import proof
from spamguard.folders import doveconf
from tests.unit.folders.maildirs import maildir


def test_all_is_well(run, taught):
    done = run(taught, "doctor")
    assert done.status == 0, done.out
    lines = done.out.splitlines()
    assert all(line.startswith(("ok ", "- ")) for line in lines)
    assert any("lesson: learnt as spam" in line for line in lines)
    assert lines[-1].endswith("all counts are as before, bit for bit")
    assert done.err == ""


def test_json(run, taught):
    answer = run(taught, "doctor", "--json").json
    assert answer["ok"]
    assert {"step": "state directory"}.items() <= {"step": answer["steps"][0]["name"]}.items()
    assert set(answer["steps"][0]) == {"name", "outcome", "detail", "remedy"}


def test_nobody_watches_that_mailbox(run, taught, tmp_path, monkeypatch):
    monkeypatch.setattr(proof, "SECONDS", 0.2)
    path = maildir(tmp_path / "anna", ".Junk")
    done = run(taught, "doctor", "--maildir", path)
    assert done.status == 1
    assert "FAILED  sighting: the watcher has not seen it" in done.out
    assert f"does its `watch` name {path}" in done.out
    assert [one for one in path.rglob("*") if one.is_file()] == []


def test_what_is_no_mailbox(run, taught, tmp_path):
    maildir(tmp_path / "ben")
    for path, told in ((tmp_path / "none", "No such file"), (tmp_path / "ben", "no folder of spam")):
        done = run(taught, "doctor", "--maildir", path)
        assert done.status == 1
        assert told in done.out
    done = run(taught, "doctor", "--user", "no-such-user")
    assert (done.status, "is no user of this system" in done.out) == (1, True)


def test_without_a_filter_nothing_is_made(run, tmp_path):
    done = run(tmp_path / "none", "doctor")
    assert done.status == 1
    assert "no filter there" in done.out
    assert not (tmp_path / "none").exists()


def test_the_configuration_says_where(run, taught, tmp_path, monkeypatch):
    monkeypatch.setattr(doveconf, "read", lambda: doveconf.Dovecot("maildir"))
    path = maildir(tmp_path / "anna", ".Junk")
    file = tmp_path / "spamguard.yaml"
    file.write_text(
        f"state: {taught}\nwatch: [{path}]\nlisteners:\n"
        f"  - {{listen: 'smtp://127.0.0.1:10025', position: standalone, next_hop: 'lmtp:{tmp_path}/none'}}\n"
    )
    done = run(None, "doctor", "--config", file)
    assert done.status == 1
    (failed,) = [line for line in done.out.splitlines() if line.startswith("FAILED")]
    assert failed.startswith(
        f"FAILED  next hop: lmtp:{tmp_path}/none: connect: No such file or directory -> start it, or correct `next_hop`"
    )
    assert ", 6 needed\n" in done.out
