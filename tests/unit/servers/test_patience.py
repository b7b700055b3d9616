"""How long a client may go on without a message."""

from spamguard.config.options import DoorLimits
from spamguard.servers.smtp_state import CommandBudget


def test_patience_ends_and_is_renewed():
    patience = CommandBudget(DoorLimits(idle_commands=2, wrong_commands=1))
    patience.count_wrong()
    patience.count_idle()
    patience.count_idle()
    assert not patience.is_exhausted
    patience.count_idle()
    assert patience.is_exhausted
    patience.reset()
    assert not patience.is_exhausted
