"""A source distribution that passes its own tests, and a wheel that runs in an empty
environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.archives import unpack
from tests.support.sources import sources

ROOT = Path(__file__).parents[2]
SECONDS = 600
UNREACHABLE = (
    r"No matching distribution|Could not find a "
    r"version|onnection\w*Error|ReadTimeoutError|ProtocolError|HTTP error 5\d\d"
)
"""What pip says when a package index cannot be reached, or breaks off."""
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "VIRTUAL", "SPAMGUARD"))
}


def run(*line: str | Path, place: Path) -> str:
    done = subprocess.run(
        line, cwd=place, env=CLEAN, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    told = done.stdout + done.stderr
    if done.returncode != 0 and re.search(UNREACHABLE, told):
        pytest.skip("needs a package index that can be reached")
    assert done.returncode == 0, told
    return done.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    place = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", place, ROOT, place=place)
    (archive,) = place.glob("spamguard-*.tar.gz")
    unpack(archive, place)
    return place / archive.name.removesuffix(".tar.gz")


def test_nothing_is_missing_from_the_source_distribution(unpacked: Path) -> None:
    assert set(sources(ROOT)) <= set(sources(unpacked)) | {".gitignore"}


def test_it_passes_its_tests(unpacked: Path) -> None:
    """Some of them: of the configuration, its snippets, the page and the made-up mail."""
    some = [
        "tests/unit/config/test_config.py",
        "tests/unit/test_synthetic.py",
        "tests/e2e/test_recipes.py",
        "tests/e2e/test_readme.py",
    ]
    told = run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "not five_minutes",
        *some,
        place=unpacked,
    )
    assert " passed" in told


def test_a_wheel_runs_in_a_clean_environment(unpacked: Path, tmp_path: Path) -> None:
    """Made of the source distribution, as package indexes do."""
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        tmp_path,
        unpacked,
        place=tmp_path,
    )
    (wheel,) = tmp_path.glob("spamguard-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in sources(ROOT) if name.startswith("spamguard/web/pages/")} <= set(
            packed.namelist()
        )
    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    run(place / "bin" / "pip", "install", "-q", wheel, place=tmp_path)
    program, share = place / "bin" / "spamguard", place / "share" / "spamguard"
    assert "next_hop: " in run(
        program, "check", share / "config" / "minimal.yaml", place=tmp_path
    ).replace("\n", " ")
    (tmp_path / "message").write_bytes(b"Subject: hello\n\nNice to see you.\n")
    assert "taught 1 message" in run(
        program,
        "--state",
        tmp_path / "state",
        "learn",
        "--as",
        "ham",
        tmp_path / "message",
        place=tmp_path,
    )
    shipped = {name for name in sources(ROOT) if name.startswith(("config/", "systemd/"))}
    assert {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()} == shipped
    assert os.access(share / "config/dovecot/spamguard-learn.sh", os.X_OK) == os.access(
        ROOT / "config/dovecot/spamguard-learn.sh", os.X_OK
    )
