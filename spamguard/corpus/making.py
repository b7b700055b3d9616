"""A corpus in a directory of its own: `index` ("spam data/000001", in order of arrival), `data/`, and SOURCE, which says what it is."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from spamguard.corpus import fetching, unpacking
from spamguard.corpus.fetching import Advance
from spamguard.corpus.recipes import Recipe
from spamguard.errors import SourceError, UsageError


class Made(NamedTuple):
    """A corpus that was made. digests: SHA-256 of each archive, by its address or path; known: whether all of them were checked."""

    messages: dict[str, int]
    digests: dict[str, str]
    known: bool


def make(recipe: Recipe, target: Path, given: Sequence[Path], pinned: Collection[str], advance: Advance) -> Made:
    """Make the corpus at `target`, which must not exist; whole, or not at all.

    given: archives that are here already, instead of fetching. pinned: SHA-256 that archives must have. SourceError, UsageError.
    """
    if target.exists():
        raise UsageError(f"{target}: is there already: name a directory that is to be made")
    if not given and not recipe.archives:
        raise UsageError(f"{recipe.name} must be fetched by hand ({recipe.licence}): see {recipe.page}, then give it with --archive FILE")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.new")
    try:
        (draft / "data").mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=draft) as place:
            archives, digests = _archives(recipe, Path(place), given, pinned, advance)
            found = unpacking.unpack(archives, recipe, draft / "data")
        _write(recipe, draft, found, digests)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    known = bool(pinned) or (not given and all(archive.sha256 for archive in recipe.archives))
    return Made(dict(Counter(label for label, _ in found)), digests, known)


def _archives(
    recipe: Recipe, place: Path, given: Sequence[Path], pinned: Collection[str], advance: Advance
) -> tuple[list[Path], dict[str, str]]:
    if not given:
        paths = [place / f"{number}" for number in range(len(recipe.archives))]
        return paths, {one.url: fetching.fetch(one, pinned, path, advance) for one, path in zip(recipe.archives, paths, strict=True)}
    digests = {str(path): fetching.digest_of(path) for path in given}
    for path, digest in digests.items():
        if pinned and digest not in pinned:
            raise SourceError(f"{path}: its SHA-256 is {digest}, not {' or '.join(sorted(pinned))}")
    return list(given), digests


def _write(recipe: Recipe, draft: Path, found: list[tuple[str, Path]], digests: dict[str, str]) -> None:
    if {label for label, _ in found} != {"ham", "spam"}:
        raise SourceError(f"{recipe.name}: no labelled mail of both kinds is in the archives: they are not those of this corpus")
    (draft / "index").write_text("".join(f"{label} data/{file.name}\n" for label, file in found), encoding="ascii")
    labelled = {file.name for _, file in found}
    for path in (draft / "data").iterdir():
        if path.name not in labelled:
            path.unlink()
    sources = "".join(f"{digest}  {source}\n" for source, digest in digests.items())
    (draft / "SOURCE").write_text(f"{recipe.name}: {recipe.about}\n{recipe.licence}\n{recipe.page}\n\nSHA-256\n{sources}", encoding="utf-8")
