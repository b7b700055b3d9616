"""Builds images from a Containerfile without a registry of images: a bare Debian stands for each
base, and the lines are run in their order.

It knows the instructions that the files of config/container have, and no other.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.bare_debian import BareDebian

BASE = "debian:12-slim"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
MakeDebian = Callable[[], AbstractContextManager[BareDebian]]


@dataclass
class Image:
    """A directory with the files, and what its metadata say."""

    debian: BareDebian
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    directory: str = "/"
    volumes: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def instructions(file: Path) -> list[tuple[str, str]]:
    """The lines, joined where one goes on, in pairs: instruction and arguments."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(name, arguments.strip()) for name, _, arguments in pairs]


def build(file: Path, sources: Path, debian: MakeDebian, stack: ExitStack) -> dict[str, Image]:
    """All stages by their names; the last also by the name "". The stack holds the directories."""
    stages: dict[str, Image] = {}
    for name, arguments in instructions(file):
        if name == "FROM":
            base, *named = arguments.split(" AS ")
            assert base == BASE
            stages[named[0] if named else ""] = image = Image(stack.enter_context(debian()))
            if CERTIFICATES.exists():  # pip reaches its index from there as from this machine
                shutil.copy2(CERTIFICATES, image.debian.root / "etc/index.crt")
        else:
            _apply(name, arguments, image, sources, stages)
    return stages


def _apply(
    name: str, arguments: str, image: Image, sources: Path, stages: dict[str, Image]
) -> None:
    match name:
        case "RUN":
            variables = [f"{key}={value}" for key, value in image.environment.items()]
            if CERTIFICATES.exists():
                variables.append("PIP_CERT=/etc/index.crt")
            line = f"cd {image.directory}; {arguments}"
            image.debian.run("env", *variables, "sh", "-ec", line)
        case "COPY":
            _copy(arguments.split(), image, sources, stages)
        case "WORKDIR":
            image.directory = arguments
            (image.debian.root / arguments[1:]).mkdir(parents=True)
        case "ENV" | "ARG":
            image.environment |= dict(word.split("=", 1) for word in shlex.split(arguments))
        case "USER":
            image.user = arguments
        case "VOLUME":
            image.volumes.append(arguments)
        case "HEALTHCHECK":
            image.health = json.loads(arguments.partition(" CMD ")[2])
        case "ENTRYPOINT":
            image.entry = json.loads(arguments)
        case "CMD":
            image.command = json.loads(arguments)
        case _:
            assert name == "EXPOSE", name


def _copy(words: list[str], image: Image, sources: Path, stages: dict[str, Image]) -> None:
    """The contents of a directory, or files into a directory. Caches of the sources, which tests
    write meanwhile, are left out.
    """
    left_out = shutil.ignore_patterns("__pycache__")
    if words[0].startswith("--from="):
        left_out = None
        sources = stages[words.pop(0).removeprefix("--from=")].debian.root
    *names, target = words
    place = image.debian.root / Path(image.directory, target).relative_to("/")
    for source in (sources / name.lstrip("/") for name in names):
        if source.is_dir():
            shutil.copytree(source, place, symlinks=True, ignore=left_out, dirs_exist_ok=True)
        elif target.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place / source.name)
        else:
            shutil.copy2(source, place)
