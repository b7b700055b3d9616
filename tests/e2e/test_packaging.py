"""A source distribution that passes its own tests, and wheels, compiled and pure, that run in an
empty environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from spamguard import __version__
from tests.support.archives import unpack
from tests.support.sources import sources

ROOT = Path(__file__).parents[2]
SECONDS = 600
COMPILER = shutil.which("gcc") or shutil.which("cc")
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


def run(*line: str | Path, place: Path, status: int = 0, **variables: str) -> str:
    done = subprocess.run(
        line,
        cwd=place,
        env=CLEAN | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    told = done.stdout + done.stderr
    if done.returncode != status and re.search(UNREACHABLE, told):
        pytest.skip("needs a package index that can be reached")
    assert done.returncode == status, told
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


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with nothing but pip, and then what a wheel has brought."""
    place = tmp_path_factory.mktemp("clean") / "environment"
    venv.create(place, with_pip=True)
    return place


@pytest.mark.parametrize(
    ("kernel", "tag"), [("compiled", r"cp311-abi3-\w+"), ("numpy", "py3-none-any")]
)
def test_a_wheel_runs_in_a_clean_environment(
    kernel: str, tag: str, unpacked: Path, environment: Path, tmp_path: Path
) -> None:
    """Made of the source distribution, as package indexes do, and installed without a compiler."""
    if kernel == "compiled" and COMPILER is None:
        pytest.skip("no C compiler")
    build = (sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, unpacked)
    run(*build, place=tmp_path, SPAMGUARD_KERNEL=kernel)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(rf"spamguard-{re.escape(__version__)}-{tag}\.whl", wheel.name)
    check_contents(wheel, kernel)
    pip = environment / "bin" / "pip"
    run(pip, "uninstall", "-q", "-y", "spamguard", place=tmp_path)
    run(pip, "install", "-q", "--no-compile", "--only-binary=:all:", wheel, place=tmp_path)
    check_program(environment / "bin" / "spamguard", kernel, tmp_path)
    check_share(environment / "share" / "spamguard")


def check_contents(wheel: Path, kernel: str) -> None:
    """All of the package except its C sources; compiled code only where it belongs."""
    with zipfile.ZipFile(wheel) as packed:
        contents = {name for name in packed.namelist() if name.startswith("spamguard/")}
        (metadata,) = (name for name in packed.namelist() if name.endswith(".dist-info/WHEEL"))
        is_pure = f"Root-Is-Purelib: {'true' if kernel == 'numpy' else 'false'}"
        assert is_pure in packed.read(metadata).decode().splitlines()
    package = {
        name
        for name in sources(ROOT)
        if name.startswith("spamguard/") and not name.endswith((".c", ".h", "README.md"))
    }
    compiled = {"spamguard/native/compiled.abi3.so"} if kernel == "compiled" else set()
    assert contents == package | compiled


def check_program(program: Path, kernel: str, place: Path) -> None:
    """It says which kernel it has, learns and judges."""
    assert run(program, "--version", place=place) == f"spamguard {__version__} (kernel: {kernel})\n"
    message = place / "message"
    message.write_bytes(b"Subject: hello\n\nNice to see you.\n")
    state = ("--state", place / "state")
    assert "taught 1 message" in run(program, *state, "learn", "--as", "ham", message, place=place)
    assert run(program, *state, "judge", message, place=place, status=3).startswith("unsure  0.")
    assert json.loads(run(program, *state, "status", "--json", place=place))["kernel"] == kernel


def check_share(share: Path) -> None:
    """All of config/ and systemd/, with its modes, and the pages; a sample passes its own check."""
    shipped = {
        name
        for name in sources(ROOT)
        if name.startswith(("config/", "systemd/")) or name in {"README.md", "spamguard/README.md"}
    }
    assert {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()} == shipped
    script = "config/dovecot/spamguard-learn.sh"
    assert os.access(share / script, os.X_OK) == os.access(ROOT / script, os.X_OK)
    program, sample = share.parents[1] / "bin" / "spamguard", share / "config" / "minimal.yaml"
    assert "next_hop: " in run(program, "check", sample, place=share).replace("\n", " ")
