"""The table of states is whole: every pair is either in it or out of order, and from everywhere there is a way to the end."""

import pytest

from spamguard.doors.milter.dialogue import NEXT, State
from spamguard.wire.milter import Command


def walk(state, *commands):
    for command in commands:
        state = NEXT[state, command]
    return state


MESSAGE = (Command.SENDER, Command.RECIPIENT, Command.DATA, Command.FIELD, Command.END_OF_HEADER, Command.BODY, Command.END_OF_MESSAGE)


def test_a_connection_with_several_messages_and_clients():
    client = (Command.OFFER, Command.MACROS, Command.CONNECT, Command.MACROS, Command.HELLO)
    assert walk(State.NEW, *client) is State.CLIENT
    assert walk(State.CLIENT, *MESSAGE, *MESSAGE, Command.HELLO) is State.CLIENT
    assert walk(State.CLIENT, Command.NEXT_CLIENT, Command.CONNECT, *MESSAGE, Command.QUIT) is State.NEW


@pytest.mark.parametrize("length", range(len(MESSAGE)))
def test_a_message_may_be_given_up_at_any_point(length):
    begun = walk(State.CLIENT, *MESSAGE[:length])
    assert walk(begun, Command.ABORT) is State.CLIENT
    assert walk(begun, Command.NEXT_CLIENT) is State.READY
    assert walk(begun, Command.QUIT) is State.NEW


@pytest.mark.parametrize("length", range(len(MESSAGE)))
def test_sendmail_says_nothing_of_a_message_that_is_given_up(length):
    begun = walk(State.CLIENT, *MESSAGE[:length])
    assert walk(begun, *MESSAGE) is State.CLIENT
    assert walk(begun, Command.MACROS, Command.HELLO, *MESSAGE) is State.CLIENT


def test_steps_that_may_be_left_out():
    assert walk(State.READY, Command.CONNECT, Command.SENDER, Command.END_OF_HEADER, Command.END_OF_MESSAGE) is State.CLIENT
    assert walk(State.READY, Command.ABORT) is State.READY


@pytest.mark.parametrize(
    ("state", "command"),
    [
        *[(State.NEW, command) for command in Command if command not in (Command.OFFER, Command.QUIT)],
        *[(state, Command.OFFER) for state in State if state is not State.NEW],
        (State.READY, Command.SENDER),
        (State.CLIENT, Command.CONNECT),
        (State.CLIENT, Command.RECIPIENT),
        (State.CLIENT, Command.FIELD),
        (State.CLIENT, Command.END_OF_MESSAGE),
        (State.ENVELOPE, Command.BODY),
        (State.ENVELOPE, Command.END_OF_MESSAGE),
        (State.HEADER, Command.RECIPIENT),
        (State.HEADER, Command.BODY),
        (State.BODY, Command.FIELD),
        (State.BODY, Command.END_OF_HEADER),
    ],
)
def test_out_of_order(state, command):
    assert (state, command) not in NEXT


def test_every_command_has_its_place_and_every_state_a_way_on():
    assert {command for _, command in NEXT} == set(Command)
    assert {state for state, _ in NEXT} == set(State) == set(NEXT.values())
