"""How long a client may go on without a message."""

from spamguard.doors.smtp.patience import Patience
from spamguard.settings import DoorLimits


def test_patience_ends_and_is_renewed():
    patience = Patience(DoorLimits(idle_commands=2, wrong_commands=1))
    patience.wrong()
    patience.idle()
    patience.idle()
    assert not patience.lost
    patience.idle()
    assert patience.lost
    patience.renew()
    assert not patience.lost
