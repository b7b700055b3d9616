"""Prometheus's text format, version 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/). Values in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
_NEVER_PLAIN = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def counter(name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """The lines of a metric that only grows; its name ends in _total."""
    return _family(name, "counter", about, samples)


def gauge(name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """The lines of a metric that goes up and down."""
    return _family(name, "gauge", about, samples)


def histogram(name: str, about: str, bounds: Iterable[float], samples: Iterable[tuple[Labels, list[int], float]]) -> Iterator[str]:
    """The lines of a histogram. samples: labels, how many fell into each bucket, one more than bounds, and the sum of all values."""
    yield from _head(name, "histogram", about)
    ends = [*(_number(bound) for bound in bounds), "+Inf"]
    for labels, counts, whole in samples:
        for end, count in zip(ends, accumulate(counts), strict=True):
            yield _sample(f"{name}_bucket", {**labels, "le": end}, count)
        yield _sample(f"{name}_sum", labels, whole)
        yield _sample(f"{name}_count", labels, sum(counts))


def page(lines: Iterable[str]) -> bytes:
    """The whole text."""
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _family(name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield from _head(name, kind, about)
    for labels, value in samples:
        yield _sample(name, labels, value)


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{text.translate(_NEVER_PLAIN)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return repr(value)
