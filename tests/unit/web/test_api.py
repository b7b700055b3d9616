"""All operations of the API, held against its own description: each answers as described, and there
are no others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import httpx
import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator

from spamguard.web import requests
from spamguard.web.api import router
from tests.unit.web.fixed import DIGEST, NAME
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


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("nonsense=1", 400),
        ("q=" + "x" * 501, 422),
        ("q=" + "x" * 5000, 422),
        ("q=" + "x+" * 100, 422),
        ("limit=0", 422),
        ("limit=501", 422),
        ("limit=1.5", 422),
        ("limit=%D9%A1", 422),
        ("before=../../etc", 422),
        ("q=since:never", 422),
        ("q=since:1e400", 422),
        ("q=until:nan", 422),
    ],
)
def test_a_wrong_query_is_refused(server: Served, query: str, status: int) -> None:
    before = len(server.service.searches)
    assert problem(server.client(ANNA).get(f"{ROOT}/history?{query}")) == status
    assert len(server.service.searches) == before


@pytest.mark.parametrize("since", ["9999-12-31", "0001-01-01", "2026-11-17 08:00", "20261117"])
def test_odd_times_are_times(server: Served, since: str) -> None:
    assert (
        server.client(ANNA).get(f"{ROOT}/history", params={"q": f'since:"{since}"'}).status_code
        == 200
    )


@pytest.mark.parametrize("path", ["/judge?class=spam", "/learn", "/forget"])
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
    "path", ["/docs", "/redoc", "/openapi.json", f"{ROOT}/docs", f"{ROOT}/redoc"]
)
def test_the_pages_of_fastapi_are_off(server: Served, path: str) -> None:
    """They load scripts of other hosts."""
    assert server.client(ANNA).get(path).status_code == 404


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/history?nonsense=1", ["'nonsense'", "before, limit, q"]),
        ("/history?limit=501", ["limit: ", "500"]),
        ("/history?q=since:never", ["never is not a day", "2026-11-20"]),
        ("/model?x=1", ["'x'", "none here"]),
    ],
)
def test_a_refusal_names_parameter_and_remedy(server: Served, path: str, words: list[str]) -> None:
    detail = server.client(ANNA).get(f"{ROOT}{path}").json()["detail"]
    assert [word for word in words if word not in detail] == [], detail
