"""The table of states: every state has a way to the end of the connection."""

import pytest

from spamguard.servers.milter_protocol import TRANSITIONS, MilterCommand, MilterState


def walk(state, *commands):
    for command in commands:
        state = TRANSITIONS[state, command]
    return state


MESSAGE = (
    MilterCommand.SENDER,
    MilterCommand.RECIPIENT,
    MilterCommand.DATA,
    MilterCommand.FIELD,
    MilterCommand.END_OF_HEADER,
    MilterCommand.BODY,
    MilterCommand.END_OF_MESSAGE,
)


def test_a_connection_with_several_messages_and_clients():
    client = (
        MilterCommand.OFFER,
        MilterCommand.MACROS,
        MilterCommand.CONNECT,
        MilterCommand.MACROS,
        MilterCommand.HELLO,
    )
    assert walk(MilterState.NEW, *client) is MilterState.CLIENT
    assert walk(MilterState.CLIENT, *MESSAGE, *MESSAGE, MilterCommand.HELLO) is MilterState.CLIENT
    assert (
        walk(
            MilterState.CLIENT,
            MilterCommand.NEXT_CLIENT,
            MilterCommand.CONNECT,
            *MESSAGE,
            MilterCommand.QUIT,
        )
        is MilterState.NEW
    )


@pytest.mark.parametrize("length", range(len(MESSAGE)))
def test_a_message_may_be_given_up_at_any_point(length):
    begun = walk(MilterState.CLIENT, *MESSAGE[:length])
    assert walk(begun, MilterCommand.ABORT) is MilterState.CLIENT
    assert walk(begun, MilterCommand.NEXT_CLIENT) is MilterState.READY
    assert walk(begun, MilterCommand.QUIT) is MilterState.NEW


@pytest.mark.parametrize("length", range(len(MESSAGE)))
def test_sendmail_says_nothing_of_a_message_that_is_given_up(length):
    begun = walk(MilterState.CLIENT, *MESSAGE[:length])
    assert walk(begun, *MESSAGE) is MilterState.CLIENT
    assert walk(begun, MilterCommand.MACROS, MilterCommand.HELLO, *MESSAGE) is MilterState.CLIENT


def test_steps_that_may_be_left_out():
    assert (
        walk(
            MilterState.READY,
            MilterCommand.CONNECT,
            MilterCommand.SENDER,
            MilterCommand.END_OF_HEADER,
            MilterCommand.END_OF_MESSAGE,
        )
        is MilterState.CLIENT
    )
    assert walk(MilterState.READY, MilterCommand.ABORT) is MilterState.READY


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


def test_every_command_has_its_place_and_every_state_a_way_on():
    assert {command for _, command in TRANSITIONS} == set(MilterCommand)
    assert {state for state, _ in TRANSITIONS} == set(MilterState) == set(TRANSITIONS.values())
