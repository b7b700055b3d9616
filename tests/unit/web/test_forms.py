"""Malformed forms are refused at once, as errors of the client."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.web.served import served


def multipart(value: bytes) -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="link"\r\n\r\n' + value + b"\r\n--b--\r\n"


def fields(charset: str) -> dict[str, str]:
    return {"Content-Type": f"multipart/form-data; boundary=b; charset={charset}"}


@pytest.mark.parametrize("charset", ["undefined", "punycode", "idna", '"utf-8"'])
def test_a_form_that_names_its_charset(
    tmp_path: Path, charset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Some codecs of Python raise errors that no bytes caused, and one takes the square of the
    length of a field (punycode): minutes without answers, for any stranger.
    """
    caplog.set_level(logging.ERROR)
    with served(tmp_path) as running:
        answer = running.client().post("/login", content=multipart(b"a."), headers=fields(charset))
    assert answer.status_code == 400
    assert not caplog.records


def test_errors_of_forms_are_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a warning, for each that anybody sends."""
    with served(tmp_path) as running:
        content = multipart(b"x").replace(b"Content-", b"\0Content-")
        answer = running.client().post(
            "/login", content=content, headers={"Content-Type": "multipart/form-data; boundary=b"}
        )
    assert answer.status_code == 400
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == []
