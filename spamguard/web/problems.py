"""Errors as problems (RFC 9457): what a program or a person is told when a request fails.

Raise an error of `spamguard.errors`, or a `refusal` with a status of your own. `app.show_error`
turns every error into a problem, and shows it as JSON or as a page.

A problem must never tell anything about the inside of the program: file names, SQL, tracebacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from spamguard import errors
from spamguard.errors import SpamguardError

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER_SECONDS = 2


class UnauthenticatedError(SpamguardError):
    """There is no valid token or session. The text is for the visitor."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, for the visitor (RFC 9457). headers: for the answer."""

    status: int
    title: str
    detail: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class RefusalError(Exception):
    """Ends the handling of a request with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def make_problem(status: int, detail: str = "", headers: dict[str, str] | None = None) -> Problem:
    """Make a problem whose title is the name of the status."""
    return Problem(status, HTTPStatus(status).phrase, detail, headers or {})


def refusal(status: int, detail: str, **headers: str) -> RefusalError:
    """Make an error to raise. headers: for the answer, with _ in place of -."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return RefusalError(make_problem(status, detail, fields))


def problem_from_error(error: BaseException) -> Problem:
    """Make the problem that tells of an error; with its text only if that is for the visitor."""
    if isinstance(error, RefusalError):
        return error.problem
    if isinstance(error, HTTPException):
        detail = _STATUS_DETAILS.get(error.status_code, "")
        return make_problem(error.status_code, detail, dict(error.headers or {}))
    for error_type, status, headers in _ERROR_STATUSES:
        if isinstance(error, error_type):
            return make_problem(status, str(error), dict(headers))
    if is_internal_error(error):
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        return make_problem(503, "the filter has a problem of its own: see its log", headers)
    return make_problem(500, "an error in the program: see its log")


def is_internal_error(error: BaseException) -> bool:
    """Whether the operator must hear of an error, such as a full disk or a damaged file."""
    return isinstance(error, SpamguardError | OSError) and not isinstance(
        error, tuple(error_type for error_type, _, _ in _ERROR_STATUSES)
    )


_STATUS_DETAILS = {
    400: "the request is malformed",
    404: "there is nothing at this address",
    405: "this address does not take this method: see Allow",
    413: "a field of a form has at most 1 MB: choose a longer message as a file",
}
_ERROR_STATUSES: tuple[tuple[type[SpamguardError], int, dict[str, str]], ...] = (
    (UnauthenticatedError, 401, {"WWW-Authenticate": "Bearer"}),
    (errors.NotAllowedError, 403, {}),
    (errors.NotThereError, 404, {}),
    (errors.UsageError, 422, {}),
    (errors.UnknownClassError, 422, {}),
    (errors.BusyError, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)}),
)


def problem_response(problem: Problem) -> JSONResponse:
    """Write a problem for programs."""
    members = {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
    }
    return JSONResponse(members, problem.status, problem.headers, PROBLEM_JSON)
