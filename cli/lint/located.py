"""YAML's mappings and lists as Python's, which know on which lines they stand; and how to walk them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class Block(dict[str, Any]):
    """A mapping. A key that is written twice has its last value.

    ``line`` is that of the key whose value it is; without one, that of its own first key.
    """

    def __init__(self, line: int, file: str) -> None:
        super().__init__()
        self.line = line
        self.file = file
        self.key_lines: dict[str, int] = {}

    def line_of(self, *path: str) -> int:
        """The line of the last key of the path that is there; without any, the mapping's own."""
        line, block = self.line, self
        for key in path:
            if key not in block.key_lines:
                break
            line = block.key_lines[key]
            value = block[key]
            if not isinstance(value, Block):
                break
            block = value
        return line


class Items(list[Any]):
    """A list."""

    def __init__(self, line: int, file: str) -> None:
        super().__init__()
        self.line = line
        self.file = file
        self.lines: list[int] = []

    def located(self) -> Iterator[tuple[int, Any]]:
        """The items with their lines."""
        return zip(self.lines, self, strict=True)


class Malformed(Exception):
    """A field has a type that Kubernetes does not take there."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


def block_at(block: Block, *path: str) -> Block:
    """The mapping at the end of the path; if it is missing, an empty one on the line of the last key.

    Raises:
        Malformed: there is something else.
    """
    found = block
    for key in path:
        value = found.get(key)
        if value is None:
            return Block(block.line_of(*path), block.file)
        if not isinstance(value, Block):
            raise Malformed(block.file, found.key_lines[key], f"{key} must be a mapping")
        found = value
    return found


def items_at(block: Block, *path: str) -> Items:
    """The list at the end of the path; an empty one if it is missing.

    Raises:
        Malformed: there is something else.
    """
    parent = block_at(block, *path[:-1])
    value = parent.get(path[-1])
    if value is None:
        return Items(parent.line, block.file)
    if not isinstance(value, Items):
        raise Malformed(block.file, parent.key_lines[path[-1]], f"{path[-1]} must be a list")
    return value


def blocks_at(block: Block, *path: str) -> list[Block]:
    """The mappings in the list at the end of the path.

    Raises:
        Malformed: one of the items is something else.
    """
    found = []
    for line, item in items_at(block, *path).located():
        if not isinstance(item, Block):
            raise Malformed(block.file, line, f"each of {path[-1]} must be a mapping")
        found.append(item)
    return found


def text_at(block: Block, *path: str) -> str:
    """The string at the end of the path; empty if it is missing.

    Raises:
        Malformed: there is something else.
    """
    parent = block_at(block, *path[:-1])
    value = parent.get(path[-1])
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(
            block.file, parent.key_lines[path[-1]], f"{path[-1]} must be a string; put it in quotes"
        )
    return value


@dataclass(frozen=True)
class Manifest:
    """One object of Kubernetes, or the part of one that stands for another (a claim's template)."""

    file: str
    body: Block
    kind: str
    name: str
    namespace: str = ""

    @property
    def subject(self) -> str:
        """How it is called in findings."""
        return f"{self.kind}/{self.name}"
