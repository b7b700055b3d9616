"""All operations of the API, held against its own description: each answers as described, and there
are no others.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator

from spamguard.errors import BusyError, NotAllowedError, NotThereError, UsageError
from spamguard.web import api, requests
from spamguard.web.api import router
from spamguard.web.models import Model, User
from spamguard.web.queries import Search
from tests.unit.web.fixed import DIGEST, NAME, OTHER
from tests.unit.web.served import ANNA, LETTER, MESSAGE, OPERATOR, ROOT, Served, served


class Operation(NamedTuple):
    """A route of the API that is no page."""

    method: str
    path: str
    name: str


OPERATIONS = [
    Operation(method, route.path.removeprefix(ROOT), route.name)
    for route in router.routes
    if isinstance(route, APIRoute) and route.include_in_schema
    for method in route.methods or ()
]
GIVEN = {"class": "spam", "digest": DIGEST, "user": "anna", "since": "2026-11-17", "word": "viagra"}


@pytest.fixture(scope="module")
def described(server: Served) -> dict[str, Any]:
    description: dict[str, Any] = server.client(ANNA).get(f"{ROOT}/openapi.json").json()
    return description


def validator(described: dict[str, Any], value: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(value | {"components": described["components"]})


def problem(response: httpx.Response) -> int:
    assert response.headers["content-type"] == "application/problem+json", response.text[:200]
    assert response.json()["status"] == response.status_code
    return response.status_code


def test_the_description_lists_all_operations(described: dict[str, Any]) -> None:
    assert described["openapi"] == "3.1.0"
    listed = {(method, path) for path, item in described["paths"].items() for method in item}
    assert listed == {(operation.method.lower(), ROOT + operation.path) for operation in OPERATIONS}
    names = [
        operation["operationId"]
        for item in described["paths"].values()
        for operation in item.values()
    ]
    assert len(set(names)) == len(names)
    for name, schema in described["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert schema["description"], name


@pytest.mark.parametrize(
    ("path", "name", "value", "fits"),
    [
        ("/learn", "class", "spam", True),
        ("/learn", "class", "", False),
        ("/history", "label", "", True),
        ("/history", "before", "", True),
        ("/forget", "digest", "0" * 32, True),
        ("/forget", "digest", "0" * 16, False),
    ],
)
def test_the_description_accepts_what_the_api_accepts(
    server: Served, described: dict[str, Any], path: str, name: str, value: str, fits: bool
) -> None:
    (method, operation), *_ = described["paths"][ROOT + path].items()
    schema = next(
        parameter["schema"] for parameter in operation["parameters"] if parameter["name"] == name
    )
    assert Draft202012Validator(schema).is_valid(value) == fits
    response = server.client(OPERATOR, **MESSAGE).request(
        method, ROOT + path, params={name: value}, content=LETTER if method == "post" else None
    )
    assert (response.status_code == 200) == fits, response.text


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_everything_answers_as_described(
    server: Served, described: dict[str, Any], operation: Any
) -> None:
    """Called as the description says, by an operator; held against the schema of the answer, which
    allows no more keys.
    """
    told = described["paths"][ROOT + operation.path][operation.method.lower()]
    given = {
        parameter["name"]: GIVEN[parameter["name"]]
        for parameter in told.get("parameters", ())
        if parameter["in"] == "query" and parameter["required"]
    }
    message = "requestBody" in told
    path = (ROOT + operation.path).replace("{id}", NAME)
    response = server.client(OPERATOR, **(MESSAGE if message else {})).request(
        operation.method, path, params=given, content=LETTER if message else None
    )
    assert response.status_code == 200, response.text
    (kind, content), *_ = told["responses"]["200"]["content"].items()
    assert response.headers["content-type"].partition(";")[0] == kind
    if kind == "application/json":
        validator(described, content["schema"]).validate(response.json())


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_without_credentials_nothing_answers(
    server: Served, described: dict[str, Any], operation: Any
) -> None:
    before = len(server.service.calls), len(server.service.messages)
    path = (ROOT + operation.path).replace("{id}", NAME)
    response = server.client(**MESSAGE).request(
        operation.method, path, params=GIVEN, content=LETTER
    )
    assert problem(response) == 401
    validator(described, {"$ref": "#/components/schemas/Problem"}).validate(response.json())
    assert (len(server.service.calls), len(server.service.messages)) == before


def test_some_are_for_operators(server: Served) -> None:
    client = server.client(ANNA)
    found = {
        operation.name
        for operation in OPERATIONS
        if client.request(
            operation.method,
            (ROOT + operation.path).replace("{id}", NAME),
            headers=MESSAGE,
            content=LETTER,
        ).status_code
        == 403
    }
    assert found == {"delete", "status", "metrics"}


def test_arguments_reach_the_service(server: Served) -> None:
    client = server.client(ANNA)
    server.service.calls.clear()
    client.post(f"{ROOT}/learn", params={"class": "ham"}, content=LETTER, headers=MESSAGE)
    client.post(f"{ROOT}/forget", params={"digest": DIGEST})
    client.post(f"{ROOT}/history/{NAME}/learn", params={"class": "spam"})
    client.post(f"{ROOT}/history/{NAME}/forget")
    client.post(f"{ROOT}/undo", params={"user": "anna", "since": "1500000000.5", "dry_run": "true"})
    client.post(f"{ROOT}/quarantine/{NAME}/release")
    assert server.service.calls == [
        ("learn", "anna", LETTER, "ham"),
        ("forget", "anna", DIGEST),
        ("learn_passed", "anna", NAME, "spam"),
        ("forget_passed", "anna", NAME),
        ("undo", "anna", "anna", 1500000000.5, True),
        ("release", "anna", NAME),
    ]


def test_history_is_searched_and_paged(server: Served) -> None:
    given = {
        "from": "é@x",
        "to": "b",
        "subject": "c d",
        "label": "not-scanned",
        "taught": "any",
        "since": "2026-11-17T08:00:00Z",
    }
    given |= {"until": "2026-11-18", "before": OTHER, "limit": "7"}
    response = server.client(ANNA).get(f"{ROOT}/history", params=given)
    assert server.service.searches[-1] == Search(
        "é@x", "b", "c d", "not-scanned", "any", 1794902400.0, 1794960000.0, OTHER, 7
    )
    assert response.json()["following"] == OTHER
    server.client(ANNA).get(f"{ROOT}/history?before=&from=")
    assert server.service.searches[-1] == Search()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("nonsense=1", 400),
        ("subject=%00", 422),
        ("subject=a%0ab", 422),
        ("subject=" + "x" * 501, 422),
        ("subject=" + "x" * 5000, 422),
        ("limit=0", 422),
        ("limit=501", 422),
        ("limit=1.5", 422),
        ("limit=%D9%A1", 422),
        ("before=../../etc", 422),
        ("since=never", 422),
        ("since=1e400", 422),
        ("since=nan", 422),
        ("label=A", 422),
    ],
)
def test_a_wrong_query_is_refused(server: Served, query: str, status: int) -> None:
    before = len(server.service.searches)
    assert problem(server.client(ANNA).get(f"{ROOT}/history?{query}")) == status
    assert len(server.service.searches) == before


@pytest.mark.parametrize(
    ("since", "seconds"),
    [("20261117", 1794873600.0), ("1794873600", 1794873600.0), ("2026-11-17", 1794873600.0)],
)
def test_a_day_without_dashes_is_a_day(server: Served, since: str, seconds: float) -> None:
    """As seconds it would be in 1970, and all votes of the user would be taken back."""
    server.client(ANNA).post(
        f"{ROOT}/undo", params={"user": "anna", "since": since, "dry_run": "true"}
    )
    assert server.service.calls[-1] == ("undo", "anna", "anna", seconds, True)


@pytest.mark.parametrize(
    "since", ["999999999999", "9999-12-31", "0001-01-01", "2026-11-17 08:00", "20261117"]
)
def test_odd_times_are_times(server: Served, since: str) -> None:
    assert server.client(ANNA).get(f"{ROOT}/history", params={"since": since}).status_code == 200


@pytest.mark.parametrize("path", ["/judge?class=spam", "/undo?user=anna", "/learn", "/forget"])
def test_missing_and_unknown_arguments(server: Served, path: str) -> None:
    answer = server.client(ANNA).post(ROOT + path, content=LETTER, headers=MESSAGE)
    assert problem(answer) == 400


@pytest.mark.parametrize(
    "name", ["x", NAME.upper(), NAME + "0", "%2e%2e%2fetc", "%00", "%ff", NAME[:-1] + "%2f"]
)
def test_an_id_that_cannot_be_is_not_there(server: Served, name: str) -> None:
    for path in (f"/history/{name}", f"/history/{name}/why", f"/quarantine/{name}"):
        assert problem(server.client(ANNA).get(ROOT + path)) in (404, 405)


@pytest.mark.parametrize(
    ("fields", "content", "status"),
    [
        ({}, LETTER, 415),
        ({"Content-Type": "text/plain"}, LETTER, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, LETTER, 415),
        (MESSAGE | {"Content-Encoding": "gzip"}, LETTER, 415),
        (MESSAGE, b"", 422),
        ({"Content-Type": "Message/RFC822; charset=utf-8"}, LETTER, 200),
        (MESSAGE, b"\0\xff" * 1000, 200),
    ],
)
def test_forms_of_a_message(
    server: Served, fields: dict[str, str], content: bytes, status: int
) -> None:
    response = server.client(ANNA).post(f"{ROOT}/judge", content=content, headers=fields)
    assert (response.status_code if status == 200 else problem(response)) == status
    if status == 200:
        assert server.service.messages[-1] == content


@pytest.mark.parametrize("chunked", [False, True])
def test_a_message_has_its_limit(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    monkeypatch.setattr(requests, "MAX_MESSAGE_BYTES", 100_000)

    def body(size: int) -> Any:
        return iter([b"x" * 1000] * (size // 1000)) if chunked else b"x" * size

    with served(tmp_path) as running:
        client = running.client(ANNA, **MESSAGE)
        assert client.post(f"{ROOT}/judge", content=body(100_000)).status_code == 200
        for size in (101_000, 400_000, 900_000):
            assert problem(client.post(f"{ROOT}/judge", content=body(size))) == 413
        assert client.post(f"{ROOT}/judge", content=body(100_000)).status_code == 200
        assert [len(message) for message in running.service.messages] == [100_000, 100_000]


def test_a_large_message_lies_in_a_file_meanwhile(server: Served) -> None:
    content = b"x" * (5 << 20)
    assert server.client(ANNA, **MESSAGE).post(f"{ROOT}/judge", content=content).status_code == 200
    assert server.service.messages.pop() == content
    assert list((server.state / "spool").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("say it otherwise"), 422),
        (NotAllowedError("not yours"), 403),
        (NotThereError("no such id"), 404),
        (BusyError("later"), 503),
    ],
)
def test_errors_of_the_service(server: Served, error: Any, status: int) -> None:
    server.service.failure = error
    try:
        response = server.client(ANNA).get(f"{ROOT}/history")
    finally:
        server.service.failure = None
    assert problem(response) == status
    assert response.json()["detail"] == str(error)
    assert ("retry-after" in response.headers) == (status == 503)


def test_health_tells_operators_more(server: Served) -> None:
    assert server.client(ANNA).get(f"{ROOT}/health").json() == {"alive": True, "wrong": []}
    server.monitor.found = ["worker 7: not heard for 20 s"]
    try:
        assert server.client(ANNA).get(f"{ROOT}/health").json() == {"alive": False, "wrong": []}
        assert server.client(OPERATOR).get(f"{ROOT}/health").json()["wrong"] == [
            "worker 7: not heard for 20 s"
        ]
    finally:
        server.monitor.found = []


def test_a_head_is_a_get_without_its_body(server: Served) -> None:
    client = server.client(ANNA)
    assert client.head(f"{ROOT}/classes").content == b""
    assert (
        client.head(f"{ROOT}/classes").headers["content-length"]
        == client.get(f"{ROOT}/classes").headers["content-length"]
    )


def test_answers_are_ascii(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that strangers wrote acts where an answer is looked at."""

    evil = "\u202e\x1b[2J<script>"

    users = [User(f"{evil}\udc80", {f"{evil}\udc80": 1, evil: 2}, None)]

    async def model(*_: object) -> Model:
        return Model({}, "", 0, 0, 1, "", users)

    monkeypatch.setattr(server.service, "model", model)
    response = server.client(ANNA).get(f"{ROOT}/model")
    assert re.fullmatch(rb"[ -~]+", response.content)
    (user,) = response.json()["users"]
    assert user["user"] == f"{evil}\udc80"
    assert user["lessons"][evil] == 2


def test_names_are_those_of_the_commands(server: Served) -> None:
    """Where both tell the same."""
    client = server.client(ANNA)
    found = client.get(f"{ROOT}/history/{NAME}/why").json()
    assert {
        "time",
        "listener",
        "client",
        "from",
        "author",
        "to",
        "subject",
        "size",
        "label",
        "probability",
        "log_odds",
        "personal",
    } <= set(found["then"])
    assert {"action", "next_hop", "words"} <= set(found["then"])
    told = {
        "label",
        "probability",
        "log_odds",
        "probabilities",
        "favoured",
        "against",
        "sum",
        "prior",
        "experts",
        "words",
        "other_words",
        "sentence",
        "groups",
    }
    assert set(found["now"]) == told | {"traits", "numbers", "biases", "to_threshold", "flip"}


@pytest.mark.parametrize("path", ["/api", "/api/v1", "/api/v2/judge", f"{ROOT}/nothing"])
def test_unknown_paths_get_a_problem_document(server: Served, path: str) -> None:
    assert problem(server.client(ANNA).get(path)) == 404


@pytest.mark.parametrize(
    "path", ["/docs", "/redoc", "/openapi.json", f"{ROOT}/docs", f"{ROOT}/redoc"]
)
def test_the_pages_of_fastapi_are_off(server: Served, path: str) -> None:
    """They load scripts of other hosts."""
    assert server.client(ANNA).get(path).status_code == 404


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/history?nonsense=1", ["'nonsense'", "before, from, label, limit"]),
        ("/history?limit=501", ["limit: ", "500"]),
        ("/history?since=never", ["since: expected", "2026-11-17"]),
        ("/history?label=A", ["label: ", "[a-z]", "unsure or not-scanned"]),
        ("/classes?x=1", ["'x'", "none here"]),
    ],
)
def test_a_refusal_names_parameter_and_remedy(server: Served, path: str, words: list[str]) -> None:
    detail = server.client(ANNA).get(f"{ROOT}{path}").json()["detail"]
    assert [word for word in words if word not in detail] == [], detail


def test_an_empty_parameter_is_an_absent_one(server: Served) -> None:
    client = server.client(ANNA)
    query = "from=&to=&subject=&label=&taught=&since=&until=&before=&limit="
    assert client.get(f"{ROOT}/history?{query}").status_code == 200
    assert server.service.searches[-1] == Search()
    assert client.get(f"{ROOT}/today?hours=").status_code == 200
    assert client.post(f"{ROOT}/undo?user=anna&since=2026-11-17&dry_run=").status_code == 200


def test_what_takes_too_long_is_ended(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*_: object) -> dict[str, bool]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(api, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(server.service, "classes", endless)
    assert problem(server.client(ANNA).get(f"{ROOT}/classes")) == 503
    monkeypatch.setattr(server.service, "judge", endless)
    response = server.client(ANNA, **MESSAGE).post(f"{ROOT}/judge", content=LETTER)
    assert problem(response) == 503
