"""What a mail server may say when: the states of a connection as a table. Pure.

Stricter than need be would cost mail: a server that we hang up on defers it, or lets it through unjudged. So steps that some servers
leave out may be left out; but no message ends that has not begun. Sendmail, once it was agreed that MAIL gets no reply, never says that
a message was given up (RSET, or one that was too large for it): the next MAIL or HELO is all that is heard of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from spamguard.wire.milter import Command


class State(Enum):
    """How far a connection has come."""

    NEW = auto()  # nothing is agreed on yet
    READY = auto()  # no client
    CLIENT = auto()  # between messages
    ENVELOPE = auto()  # MAIL was said
    HEADER = auto()
    BODY = auto()


_AGREED = tuple(state for state in State if state is not State.NEW)
IN_MESSAGE = (State.ENVELOPE, State.HEADER, State.BODY)

NEXT: Mapping[tuple[State, Command], State] = {
    (State.NEW, Command.OFFER): State.READY,
    (State.READY, Command.CONNECT): State.CLIENT,
    **{(state, Command.HELLO): State.CLIENT for state in (State.CLIENT, *IN_MESSAGE)},
    **{(state, Command.SENDER): State.ENVELOPE for state in (State.CLIENT, *IN_MESSAGE)},
    (State.ENVELOPE, Command.RECIPIENT): State.ENVELOPE,
    (State.ENVELOPE, Command.DATA): State.ENVELOPE,
    (State.ENVELOPE, Command.FIELD): State.HEADER,
    (State.HEADER, Command.FIELD): State.HEADER,
    (State.ENVELOPE, Command.END_OF_HEADER): State.BODY,
    (State.HEADER, Command.END_OF_HEADER): State.BODY,
    (State.BODY, Command.BODY): State.BODY,
    (State.BODY, Command.END_OF_MESSAGE): State.CLIENT,
    **{(state, Command.MACROS): state for state in _AGREED},
    **{(state, Command.UNKNOWN): state for state in _AGREED},
    **{(state, Command.ABORT): State.CLIENT for state in (State.CLIENT, *IN_MESSAGE)},
    (State.READY, Command.ABORT): State.READY,
    **{(state, Command.NEXT_CLIENT): State.READY for state in _AGREED},
    **{(state, Command.QUIT): State.NEW for state in State},
}
"""State and command to the state behind it. A pair that is missing is out of order, and ends the connection."""
