"""What went wrong, as whoever asked is told it (RFC 9457). Must never tell about our inside: names of files, SQL, tracebacks."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from spamguard.errors import BusyError, NotAllowedError, NotThereError, SpamguardError, UnknownClassError, UsageError
from spamguard.web.access.contract import NobodyError, Problem

PROBLEM_JSON = "application/problem+json"
BUSY_SECONDS = 2  # after which it may be better


class RefusalError(Exception):
    """Ends the answering of a request with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def problem(status: int, detail: str = "", more: dict[str, str] | None = None) -> Problem:
    """One whose title is what the status is called."""
    return Problem(status, HTTPStatus(status).phrase, detail, more or {})


def refusal(status: int, detail: str, **more: str) -> RefusalError:
    """The same, to be raised; more: fields of the answer's header, with _ for -."""
    return RefusalError(problem(status, detail, {name.replace("_", "-"): value for name, value in more.items()}))


def of(error: BaseException) -> Problem:
    """What to say of an error: its text only where that was written for whoever asks."""
    if isinstance(error, RefusalError):
        return error.problem
    if isinstance(error, HTTPException):
        return problem(error.status_code, _OF_STATUS.get(error.status_code, ""), dict(error.headers or {}))
    for kind, status, more in _OF_ERRORS:
        if isinstance(error, kind):
            return problem(status, str(error), dict(more))
    if is_ours(error):
        return problem(503, "trouble of the filter's own: its log says more", {"Retry-After": str(BUSY_SECONDS)})
    return problem(500, "a fault of the program: its log says more")


def is_ours(error: BaseException) -> bool:
    """Whether it is trouble that whoever runs this must hear of: a full disk, a damaged file."""
    return isinstance(error, SpamguardError | OSError) and not isinstance(error, tuple(kind for kind, _, _ in _OF_ERRORS))


_OF_STATUS = {
    400: "the request is malformed",
    404: "there is nothing at this address",
    405: "this address is asked otherwise: see Allow",
    413: "a field of a form has at most 1 MB: choose a longer message as a file",
}
_OF_ERRORS: tuple[tuple[type[SpamguardError], int, dict[str, str]], ...] = (
    (NobodyError, 401, {"WWW-Authenticate": "Bearer"}),
    (NotAllowedError, 403, {}),
    (NotThereError, 404, {}),
    (UsageError, 422, {}),
    (UnknownClassError, 422, {}),
    (BusyError, 503, {"Retry-After": str(BUSY_SECONDS)}),
)


def answer(told: Problem) -> JSONResponse:
    """For programs."""
    value = {"type": "about:blank", "title": told.title, "status": told.status, "detail": told.detail}
    return JSONResponse(value, told.status, told.more, PROBLEM_JSON)
