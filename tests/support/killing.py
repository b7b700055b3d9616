"""Interrupt work as `kill -9` does: a child process that dies before a chosen system
call on files.
"""

from __future__ import annotations

import itertools
import os
import traceback
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> int:
    """Do this in a process of its own; its exit status, negative if a signal ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # threads that other tests left are not used here
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(1)


def killed_at(step: int, work: Callable[[], object]) -> int:
    """Do this in a process of its own that is killed before its system call number `step`; its exit
    status.
    """
    steps = itertools.count()

    def dying(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **settings: object) -> object:
            if next(steps) == step:
                os.kill(os.getpid(), 9)
            return function(*arguments, **settings)

        return call

    def patched() -> None:
        for action in ("open", "mkdir", "link", "fsync", "unlink", "replace", "rename"):
            setattr(os, action, dying(getattr(os, action)))
        work()

    return in_child(patched)
