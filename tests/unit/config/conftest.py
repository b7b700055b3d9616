"""Configuration files for the tests."""

from __future__ import annotations

import pytest

from spamguard.config.load import load_settings
from spamguard.config.options import Settings
from spamguard.errors import ConfigError


@pytest.fixture
def load(tmp_path):
    """Loads a text as a file."""

    def read(text: str | bytes) -> Settings:
        file = tmp_path / "some.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_settings(file)

    return read


@pytest.fixture
def mistakes(load):
    """The mistakes of a text, without the name of the file."""

    def find(text: str | bytes) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text)
        assert all(
            "\n" not in problem and "some.yaml:" in problem for problem in caught.value.problems
        )
        return [problem.partition("some.yaml:")[2] for problem in caught.value.problems]

    return find
