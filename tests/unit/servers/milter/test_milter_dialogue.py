"""The table of states: a message may be given up at any point, and nothing is out of order."""

import pytest

from spamguard.servers.milter import TRANSITIONS, MilterCommand, MilterState

MESSAGE = (
    MilterCommand.SENDER,
    MilterCommand.RECIPIENT,
    MilterCommand.DATA,
    MilterCommand.FIELD,
    MilterCommand.END_OF_HEADER,
    MilterCommand.BODY,
    MilterCommand.END_OF_MESSAGE,
)


def walk(state, *commands):
    for command in commands:
        state = TRANSITIONS[state, command]
    return state


@pytest.mark.parametrize("length", range(len(MESSAGE)))
def test_a_message_may_be_given_up_at_any_point(length):
    begun = walk(MilterState.CLIENT, *MESSAGE[:length])
    assert walk(begun, MilterCommand.ABORT) is MilterState.CLIENT
    assert walk(begun, MilterCommand.NEXT_CLIENT) is MilterState.READY
    assert walk(begun, MilterCommand.QUIT) is MilterState.NEW
    # Sendmail says nothing of it.
    assert walk(begun, *MESSAGE) is MilterState.CLIENT
    assert walk(begun, MilterCommand.MACROS, MilterCommand.HELLO, *MESSAGE) is MilterState.CLIENT


@pytest.mark.parametrize(
    ("state", "command"),
    [
        *[
            (MilterState.NEW, command)
            for command in MilterCommand
            if command not in (MilterCommand.OFFER, MilterCommand.QUIT)
        ],
        *[(state, MilterCommand.OFFER) for state in MilterState if state is not MilterState.NEW],
        (MilterState.READY, MilterCommand.SENDER),
        (MilterState.CLIENT, MilterCommand.CONNECT),
        (MilterState.CLIENT, MilterCommand.RECIPIENT),
        (MilterState.CLIENT, MilterCommand.FIELD),
        (MilterState.CLIENT, MilterCommand.END_OF_MESSAGE),
        (MilterState.ENVELOPE, MilterCommand.BODY),
        (MilterState.ENVELOPE, MilterCommand.END_OF_MESSAGE),
        (MilterState.HEADER, MilterCommand.RECIPIENT),
        (MilterState.HEADER, MilterCommand.BODY),
        (MilterState.BODY, MilterCommand.FIELD),
        (MilterState.BODY, MilterCommand.END_OF_HEADER),
    ],
)
def test_out_of_order(state, command):
    assert (state, command) not in TRANSITIONS
