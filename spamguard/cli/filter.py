"""`filter`: a message from standard input to standard output with the verdict on top, for delivery agents.

Must never lose or change mail: whatever fails, the message comes out with all its bytes and the exit status is 0. Only a message
that could not be read or written at all gives another one: 75 (EX_TEMPFAIL), on which delivery agents keep it and try again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress

from spamguard.cli import rim, usage
from spamguard.errors import MemoryLimitError

ABOUT = """Add the verdict to a message on its way through. It is read from standard input and written to standard output.

The fields X-Spam-Flag (unwanted mail only), X-Spam-Status and X-Spamguard are put on top; those that the message brings
along are taken out, all else stays as it is, byte for byte. A message that cannot be judged goes through with
`X-Spamguard: not-scanned`, and the exit status is 0 all the same. It is 75 only when the message could not be read or written."""
EXAMPLE = """  spamguard filter < message.eml

  in .procmailrc:
    :0fw
    | spamguard filter --user "$LOGNAME"
    :0
    * ^X-Spam-Flag: YES
    .Junk/"""

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    usage.add_user(usage.describe(commands, "filter", run, ABOUT, EXAMPLE))


def run(options: argparse.Namespace) -> int:
    """Pass one message on, judged if possible."""
    return _pass_on(lambda raw: _judged(raw, options))


def unscanned(reason: str) -> int:
    """Pass one message on without judging it."""
    return _pass_on(lambda raw: _not_scanned(raw, reason))


def _pass_on(answer: Callable[[bytes], bytes]) -> int:
    try:
        raw = sys.stdin.buffer.read()
        _write(_whatever_happens(raw, answer))
    except BaseException as error:  # noqa: BLE001  the delivery agent still has the message: it is told to keep it
        _explain("the message could not be passed on", error)
        rim.abandon_output()
        return TRY_AGAIN
    return 0


def _whatever_happens(raw: bytes, answer: Callable[[bytes], bytes]) -> bytes:
    try:
        return answer(raw)
    except MemoryLimitError as error:  # what adds a field to the message would load numpy, which ends us
        _explain("the message was not scanned", error)
        return raw
    except BaseException as error:  # noqa: BLE001  an interrupt, a lack of memory, a fault of ours: the mail goes on
        _explain("the message was not scanned", error)
        return _not_scanned(raw, type(error).__name__)


def _judged(raw: bytes, options: argparse.Namespace) -> bytes:
    with rim.open_to_ask(options) as spam_filter:  # first, which looks whether there is memory for what is loaded here
        from secrets import token_hex

        from spamguard import policy, secret, signature
        from spamguard.mail.rewrite import with_fields
        from spamguard.settings import Policy

        found = spam_filter.scan(raw, words=0, users=(options.user,))
        verdict = found.personal.get(options.user, found.verdict)
        decision = policy.decide(verdict, Policy(), found.threshold)
        key = secret.derived(spam_filter.key, b"verdict")
    signed = signature.sign(key, verdict, decision.action, token_hex(10), found.digest)
    return with_fields(raw, policy.header_fields(verdict, decision, signed), policy.VERDICT_FIELDS)


def _not_scanned(raw: bytes, reason: str) -> bytes:
    try:
        from spamguard import policy
        from spamguard.mail.rewrite import with_fields

        return with_fields(raw, policy.not_scanned(reason), policy.VERDICT_FIELDS)
    except BaseException:  # noqa: BLE001  nothing of ours works: the mail goes on as it came
        return raw


def _explain(what: str, error: BaseException) -> None:
    with suppress(BaseException):  # telling why is worth less than the mail
        rim.say(f"{what}: {rim.in_words(error)}")


def _write(message: bytes) -> None:
    sys.stdout.buffer.write(message)
    sys.stdout.buffer.flush()
