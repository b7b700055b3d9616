"""History and ledger as they are read: what a thread that only looks works with. Must never write to either."""

from __future__ import annotations

from pathlib import Path

from spamguard import secret
from spamguard.engine import Filter
from spamguard.files import KEY, LEDGER
from spamguard.history import FILE, History
from spamguard.ledger import SqliteLedger
from spamguard.settings import Settings

_AT_ONCE = 5000  # events


class Reading:
    """For one thread. history, ledger: opened. In the history's own connection stands what each message is taught as (`catch_up`)."""

    def __init__(self, history: History, ledger: SqliteLedger) -> None:
        """Use `open`."""
        self.history = history
        self.ledger = ledger
        self._seen = 0

    @classmethod
    def open(cls, settings: Settings) -> Reading:
        """Those in the state directory, made where there are none yet."""
        file = settings.state / LEDGER
        ensure(settings.state)
        key = secret.load(settings.state / KEY, create=False)
        ledger = SqliteLedger.open(file, secret.fingerprint(key))
        try:
            return cls(History.open(settings.state / FILE, settings.history.size, settings.history.days), ledger)
        except BaseException:
            ledger.close()
            raise

    def close(self) -> None:
        """Give both back."""
        self.history.close()
        self.ledger.close()

    def catch_up(self) -> None:
        """Tell the history what messages are taught as by now: the first time all, then what is new."""
        last, anew = self.ledger.last_seq(), False
        if last < self._seen:  # an older ledger was restored
            self._seen, anew = 0, True
        while self._seen < last:
            upto = min(last, self._seen + _AT_ONCE)
            self.history.looks.tell(self.ledger.users.changed(self._seen, upto), anew=anew)
            self._seen, anew = upto, False


def ensure(state: Path) -> None:
    """Have a filter there: before the first lesson there may be none, and scorers make none."""
    if not (state / LEDGER).exists():
        Filter.open(state).close()
