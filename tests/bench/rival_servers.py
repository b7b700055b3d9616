"""Other filters of which one process answers for all messages, line by line: a number to "J FILE",
anything to "S FILE" and "H FILE".

It never tunes one: settings are stock, or those that its authors advise, and are named here.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import IO

from tests.bench.contest import Answer, Rival, answer


class _Server(Rival):
    """One process for all messages."""

    def __init__(self, place: Path, command: list[str]) -> None:
        super().__init__(place)
        environment = os.environ | {"PLACE": str(place)}
        self._log = (place / "log").open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            env=environment,
            cwd=place,
        )

    def _ask(self, line: str) -> str:
        given, said = _open(self._process.stdin), _open(self._process.stdout)
        given.write(line + "\n")
        answer = said.readline()
        if not answer:
            raise SystemExit(
                f"{self._process.args!r} ended: "
                f"{(self.place / 'log').read_text(errors='replace')[-2000:]}"
            )
        return answer

    def teach(self, path: Path, label: str) -> None:
        self._ask(f"{'S' if label == 'spam' else 'H'} {path.absolute()}")

    def close(self) -> None:
        self._process.terminate()
        for stream in (self._process.stdin, self._process.stdout):
            _open(stream).close()
        self._process.wait()
        self._log.close()


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


_CRM = r"""
window
isolate (:stats:) /pR: 0/
{
    input <byline> (:line:)
    match [:line:] (:: :op: :file:) /^([JSH]) ([^\n]+)/
    input (:text:) [:*:file:]
    {
        match [:op:] /S/
        learn <osb unique microgroom> (:*:_env_PLACE:/spam.css) [:text:] /[[:graph:]]+/
        output /learnt\n/
    }
    {
        match [:op:] /H/
        learn <osb unique microgroom> (:*:_env_PLACE:/ham.css) [:text:] /[[:graph:]]+/
        output /learnt\n/
    }
    {
        match [:op:] /J/
        {
            classify <osb unique microgroom> (:*:_env_PLACE:/spam.css | :*:_env_PLACE:/ham.css) \
                (:stats:) [:text:] /[[:graph:]]+/
        }
        match [:stats:] (:: :pr:) /pR: *([-+0-9.eE]+)/
        output /:*:pr:\n/
    }
    liaf
}
"""


class Crm114(_Server):
    """Debian's crm114, Markov pairs ("osb unique microgroom"), 2^20 slots for each class. near: in
    doubt below a pR of 10, its advice.
    """

    def __init__(self, place: Path, *, near: bool) -> None:
        place.mkdir(exist_ok=True)
        (place / "loop.crm").write_text(_CRM)
        for name in ("spam", "ham"):
            subprocess.run(
                ["cssutil", "-b", "-r", "-S", "1048576", f"{place}/{name}.css"],
                capture_output=True,
                check=True,
            )
        super().__init__(place, ["crm", "loop.crm"])
        self._near = near

    def judge(self, path: Path) -> Answer:
        ratio = float(self._ask(f"J {path.absolute()}"))
        return Answer(
            ratio * math.log(10), "spam" if ratio > 0 else "ham", self._near and abs(ratio) < 10
        )


class Crm114Near(Crm114):
    """The same, taught by its own advice: only mistakes and near mistakes, whatever is offered."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, near=True)

    def teach(self, path: Path, label: str) -> None:
        said = self.judge(path)
        if said.label != label or said.doubt:
            super().teach(path, label)


_BSFILTER = r"""
$VERBOSE = nil
ARGV.clear
load "/usr/bin/bsfilter"
place = ENV["PLACE"]
make = lambda { |*options|
  filter = Bsfilter::new
  filter.setup(["--homedir", place, "--quiet", *options])
  filter
}
teach = { "S" => make.call("--add-spam", "--update"), "H" => make.call("--add-clean", "--update") }
judge = make.call()
STDOUT.sync = true
while line = STDIN.gets
  operation, file = line.chomp.split(" ", 2)
  if operation == "J"
    judge.run([file])
    puts "%.17g" % judge.probability
  else
    teach[operation].run([file])
    puts "learnt"
  end
end
"""


class Bsfilter(_Server):
    """Debian's bsfilter (Robinson-Fisher), stock: spam from 0.582."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        (place / "loop.rb").write_text(_BSFILTER)
        super().__init__(place, ["ruby", "-Ku", "loop.rb"])

    def judge(self, path: Path) -> Answer:
        return answer(float(self._ask(f"J {path.absolute()}")), 1e-16, 0.582, 0.582 + 1e-9)


_SPAMASSASSIN = r"""
use strict; use warnings; use Mail::SpamAssassin;
my $place = $ENV{PLACE};
my $sa = Mail::SpamAssassin->new({
    local_tests_only => 1, dont_copy_prefs => 1,
    site_rules_filename => "$place/site", rules_filename => "$place/rules",
    userprefs_filename => "$place/prefs", userstate_dir => "$place/state",
    home_dir_for_helpers => $place });
$sa->init(1);
$sa->init_learner({ wait_for_lock => 1, learn_to_journal => 0, force_expire => 0 });
$| = 1;
while (my $line = <STDIN>) {
    chomp $line;
    my ($operation, $file) = split / /, $line, 2;
    open(my $in, '<', $file) or die; binmode $in; local $/; my $text = <$in>; close $in;
    my $message = $sa->parse($text, 1);
    if ($operation eq 'J') {
        my $status = $sa->check($message);
        my $chance = $status->{bayes_score};
        $status->finish;
        printf "%.17g\n", defined $chance ? $chance : 0.5;
    } else {
        $sa->learn($message, undef, $operation eq 'S' ? 1 : 0, 0)->finish;
        print "learnt\n";
    }
    $message->finish;
    $/ = "\n";
}
"""

_PREFERENCES = """use_bayes 1
bayes_auto_learn 0
bayes_auto_expire 0
bayes_min_ham_num 1
bayes_min_spam_num 1
bayes_path {place}/bayes
"""


class SpamassassinBayes(_Server):
    """SpamAssassin's Bayes alone: no other rule, no network, no learning by itself, no expiry, in
    force from one lesson of each on.
    """

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        for name in ("site", "rules", "state"):
            (place / name).mkdir(exist_ok=True)
        shutil.copy("/usr/share/spamassassin/23_bayes.cf", place / "rules")
        plugins = "".join(
            f"loadplugin Mail::SpamAssassin::Plugin::{name}\n" for name in ("Bayes", "Check")
        )
        (place / "rules" / "init.pre").write_text(plugins)
        (place / "site" / "init.pre").write_text(plugins)
        (place / "site" / "local.cf").write_text(_PREFERENCES.format(place=place))
        (place / "prefs").write_text("")
        (place / "loop.pl").write_text(_SPAMASSASSIN)
        super().__init__(place, ["perl", "loop.pl"])

    def judge(self, path: Path) -> Answer:
        return answer(float(self._ask(f"J {path.absolute()}")), 1e-16, 0.5, 0.5 + 1e-9)
