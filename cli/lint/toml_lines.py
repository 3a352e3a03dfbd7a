"""On which line of a TOML file a field stands; :mod:`tomllib` does not tell."""

from __future__ import annotations

import tomllib
from typing import Any


def line_of(text: str, path: tuple[str, ...]) -> int:
    """The line of the field, or of the longest beginning of its path that is found; 1 if nothing is.

    Each line is read by itself: a table's head, or a key with what follows it. What lies inside of a string
    of several lines can be taken for a field, which costs nothing but a wrong line.
    """
    best, depth = 1, 0
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            head, keys = _read(line.strip())
        except RecursionError:  # a key of a thousand parts
            continue
        if head is not None:
            table = head
        for found in [head] if head is not None else [table + one for one in keys]:
            common = _common(found, path)
            if common > depth:
                best, depth = number, common
    return best


def _read(line: str) -> tuple[tuple[str, ...] | None, list[tuple[str, ...]]]:
    """The path of the table whose head the line is, or the paths of the keys in it."""
    if line.startswith("["):
        paths = _paths(_loads(line))
        return (max(paths, key=len) if paths else None), []
    if "=" not in line:
        return None, []
    loaded = _loads(line)
    if loaded is None:
        # The value goes on below; the key alone is enough.
        loaded = _loads(line.partition("=")[0] + "= 0")
    return None, _paths(loaded)


def _loads(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _paths(value: Any) -> list[tuple[str, ...]]:
    """The paths of all keys, those of inline tables, too."""
    found: list[tuple[str, ...]] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            found.append((key,))
            found += [(key, *path) for path in _paths(inner)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        found += _paths(value[0])
    return found


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
