"""Reads YAML as Kubernetes does, with lines; nothing that a file holds can make it slow or large.

It builds on the parser's events: they come one after the other, however deep a file nests, and aliases stay
unexpanded until their cost is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from cli.lint.located import Block, Items

MAXIMUM_BYTES: Final = 8 << 20
MAXIMUM_DEPTH: Final = 200
MAXIMUM_VALUES: Final = 500_000
"""Values of one document, its aliases expanded."""

#: libyaml's parser where PyYAML was built with it: some ten times as fast.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "<<"

Note = Callable[[str, int, str], None]
"""Takes a rule, a line and a message."""


class _Stop(Exception):
    """The rest of the file is not read."""

    def __init__(self, rule: str, line: int, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.line = line


def _limit(line: int, message: str) -> _Stop:
    return _Stop("yaml-limit", line, message)


def read_documents(text: bytes, file: str, note: Note) -> Iterator[Any]:
    """The documents of a file of that name: :class:`Block`, :class:`Items`, or a scalar's value.

    It ends at a mistake that keeps the rest from being read, after ``note`` was told of it.
    """
    if len(text) > MAXIMUM_BYTES:
        note("yaml-limit", 1, f"the file has more than {MAXIMUM_BYTES} bytes, the most that are read")
        return
    try:
        # Each document may begin with a byte order mark; PyYAML knows that of the first alone.
        parsed = yaml.parse(text.replace(b"\n\xef\xbb\xbf", b"\n"), Loader=_LOADER)
        yield from _Builder(file, note).documents(parsed)
    except _Stop as stop:
        _note_stop(text, note, stop)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # Of an end that comes too early the parser says that it is below the last line.
        line = min(1 if mark is None else mark.line + 1, len(text.splitlines()) or 1)
        # Not str(error): it quotes the file, and what it quotes may be a secret.
        _note_stop(text, note, _Stop("yaml-syntax", line, f"not YAML: {error.problem or error.context}"))
    except (yaml.YAMLError, UnicodeError):
        note("yaml-syntax", 1, "not YAML: the file is no text in UTF-8 or UTF-16")


def _note_stop(text: bytes, note: Note, stop: _Stop) -> None:
    if stop.rule == "yaml-syntax" and _is_template(text, stop.line):
        note("yaml-template", stop.line, "the file holds {{ … }}: a template, which must be rendered first")
    else:
        note(stop.rule, stop.line, str(stop))


def _is_template(text: bytes, line: int) -> bool:
    """Whether a template's braces explain why the parser stopped at that line: there, or just above.

    Further up they stand in a text, as in rules of Prometheus, and something else is wrong.
    """
    last = text.split(b"\n")[:line][-2:]
    return any(b"{{" in one.partition(b"#")[0] for one in last)


@dataclass
class _Open:
    """A mapping or list whose end has not come yet."""

    value: Block | Items
    anchor: str | None
    size: int = 1
    key: str | None = None
    key_line: int = 0
    merges: bool = False
    """Whether the key is YAML's merge key, and not a word in quotes that looks like it."""
    merged: list[Block] = field(default_factory=list)


class _Builder:
    def __init__(self, file: str, note: Note) -> None:
        self._file = file
        self._note = note
        self._resolver: Any = Resolver()
        self._constructor = SafeConstructor()
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._root: Any = None

    def documents(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.ScalarEvent):
                value = self._scalar(event)
                self._remember(event.anchor, value, 1)
                self._put(value, 1, line, event.value, is_plain=event.implicit[0])
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                if len(self._stack) >= MAXIMUM_DEPTH:
                    raise _limit(line, f"the file nests deeper than {MAXIMUM_DEPTH} levels")
                kind = Block if isinstance(event, yaml.MappingStartEvent) else Items
                self._stack.append(_Open(kind(line, self._file), event.anchor))
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self._close(line)
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event.anchor or "", line)
            elif isinstance(event, yaml.DocumentEndEvent):
                yield self._root
                self._root = None
                self._anchors.clear()

    def _close(self, line: int) -> None:
        closed = self._stack.pop()
        if isinstance(closed.value, Block):
            for source in closed.merged:
                for key, value in source.items():
                    if key not in closed.value:
                        closed.value[key] = value
                        closed.value.key_lines[key] = source.key_lines[key]
        if self._stack and self._stack[-1].key is not None:
            closed.value.line = self._stack[-1].key_line
        self._remember(closed.anchor, closed.value, closed.size)
        self._put(closed.value, closed.size, closed.value.line, None, end=line)

    def _alias(self, anchor: str, line: int) -> None:
        if any(one.anchor == anchor for one in self._stack):
            raise _limit(line, f"the alias *{anchor[:40]} contains itself")
        if anchor not in self._anchors:
            self._note("yaml-syntax", line, f"the alias *{anchor[:40]} is not defined")
            self._put(None, 1, line, "")
            return
        value, size = self._anchors[anchor]
        self._put(value, size, line, value if isinstance(value, str) else None)

    def _remember(self, anchor: str | None, value: Any, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)

    def _put(
        self, value: Any, size: int, line: int, text: str | None, *, end: int = 0, is_plain: bool = False
    ) -> None:
        """Into the mapping or list that is open; as a key it is ``text``."""
        if not self._stack:
            self._root = value
            return
        parent = self._stack[-1]
        parent.size += size
        if parent.size > MAXIMUM_VALUES:
            raise _limit(max(line, end), f"the document expands to more than {MAXIMUM_VALUES} values")
        if isinstance(parent.value, Items):
            parent.value.append(value)
            parent.value.lines.append(line)
        elif parent.key is None:
            if text is None:
                raise _Stop("yaml-syntax", line, "a key is a mapping or a list; it must be a word")
            parent.key, parent.key_line = text, line
            parent.merges = text == _MERGE and is_plain
        else:
            self._put_value(parent, parent.value, value)
            parent.key = None

    def _put_value(self, parent: _Open, block: Block, value: Any) -> None:
        key = parent.key or ""
        if parent.merges and isinstance(value, Block | Items):
            sources = [value] if isinstance(value, Block) else value
            parent.merged += [source for source in sources if isinstance(source, Block)]
            return
        if key in block:
            self._note(
                "yaml-duplicate-key",
                parent.key_line,
                f"the key {key[:60]!r} is written twice, first on line {block.key_lines[key]}",
            )
        block[key] = value
        block.key_lines[key] = parent.key_line

    def _scalar(self, event: Any) -> Any:
        """The value that YAML 1.1, which Kubernetes reads, gives a scalar; dates and the like stay text."""
        tag = event.tag
        if tag in (None, "!"):
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in _NUMBERS and len(event.value) > _LONGEST_NUMBER:
            return math.inf  # beyond what Kubernetes takes; to compute it, or to print it, could take minutes
        construct = _CONSTRUCTORS.get(tag)
        if construct is None:
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            return construct(self._constructor, node)
        except (ValueError, ConstructorError, KeyError):
            return event.value


_LONGEST_NUMBER: Final = 100
_NUMBERS: Final = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_CONSTRUCTORS: Final = {
    "tag:yaml.org,2002:null": SafeConstructor.construct_yaml_null,
    "tag:yaml.org,2002:bool": SafeConstructor.construct_yaml_bool,
    "tag:yaml.org,2002:int": SafeConstructor.construct_yaml_int,
    "tag:yaml.org,2002:float": SafeConstructor.construct_yaml_float,
}
