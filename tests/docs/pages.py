"""What the pages hold: links, anchors, and fenced blocks with the commands in them.

Every fenced block has a language. Commands are in ``console`` blocks, each after a prompt (``$``, or ``#``
for root), with what it prints below it; ``...`` stands for any lines and ``…`` for any text in a line. A
``sh`` or ``bash`` block is one command. A block whose title (```` ```yaml title="pvc.yaml" ````) is a file
name is that file, for the commands of its page.

A comment above a block says how its commands are tested, if not by
``tests/docs/test_commands.py``::

    <!-- commands: run by tests/guest/test_rotation.py -->
    <!-- commands: played, it needs an account of AWS -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).parents[2]
PAGES: Final = [*sorted(TOP.glob("*.md")), *sorted((TOP / "docs").rglob("*.md"))]
SHELLS: Final = frozenset({"bash", "console", "sh"})
OTHER_LANGUAGES: Final = frozenset({"dockerfile", "json", "promql", "python", "rego", "text", "toml", "yaml"})

_FENCE: Final = re.compile(r"(?P<indent> *)(?P<fence>```+)(?P<language>[\w-]*) *(?P<options>.*)")
_TITLE: Final = re.compile(r'title="([^"]+)"')
_MARKER: Final = re.compile(r" *<!-- commands: (.*) -->")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_INLINE_CODE: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """One command, the number of its line in the page, and the lines that the page shows as its output."""

    line: int
    text: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block. ``marker`` is the text of the comment above it, ``line`` its first line's number."""

    page: Path
    line: int
    language: str
    title: str | None
    marker: str | None
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(TOP)}:{self.line}"

    @property
    def run_by(self) -> str | None:
        """The test that runs the commands, if another one than :mod:`tests.docs.test_commands`."""
        return (
            self.marker.removeprefix("run by ") if self.marker and self.marker.startswith("run by ") else None
        )

    @property
    def played(self) -> bool:
        """Whether all programs of the commands are only played, for a reason that the marker tells."""
        return self.marker is not None and self.marker.startswith("played, ")

    def commands(self) -> list[Command]:
        """The commands of a shell block.

        Raises:
            ValueError: a ``console`` block begins with something else than a prompt.
        """
        if self.language != "console":
            return [Command(self.line + 1, self.text, ())]
        found: list[Command] = []
        for number, line in enumerate(self.lines, self.line + 1):
            if line.startswith(("$ ", "# ")):
                found.append(Command(number, line[2:], ()))
            elif not found:
                raise ValueError(f"{self.place}: a console block begins with a prompt, '$ ' or '# '")
            elif not found[-1].output and (found[-1].text.endswith("\\") or line[:2] in (">", "> ")):
                last = found[-1]
                more = line[2:] if line[:2] in (">", "> ") else line
                found[-1] = Command(last.line, f"{last.text}\n{more}", ())
            else:
                last = found[-1]
                found[-1] = Command(last.line, last.text, (*last.output, line))
        return found


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return list(_blocks(page, page.read_text().splitlines()))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    lines = page.read_text().splitlines()
    for block in blocks(page):
        for number in range(block.line - 1, block.line + len(block.lines) + 1):
            lines[number] = ""
    return "\n".join(lines)


def inline_code(page: Path) -> list[str]:
    """What stands in backquotes in a page's prose, with line breaks as spaces."""
    return [" ".join(match[1].split()) for match in _INLINE_CODE.findall(prose(page))]


def links(page: Path) -> list[str]:
    """The targets of a page's links."""
    return _LINK.findall(_INLINE_CODE.sub("code", prose(page)))


def headings(page: Path) -> list[str]:
    """The texts of a page's headings, without markup."""
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in _HEADING.findall(prose(page))]
    return [text.replace("`", "").replace("*", "") for text in shown]


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    number = 0
    while number < len(lines):
        begin = _FENCE.fullmatch(lines[number])
        if begin is None:
            number += 1
            continue
        indent, end = len(begin["indent"]), begin["indent"] + begin["fence"]
        length = lines[number + 1 :].index(end)
        body = tuple(line[indent:] for line in lines[number + 1 : number + 1 + length])
        above = next((line for line in reversed(lines[:number]) if line.strip()), "")
        marker = _MARKER.fullmatch(above)
        title = _TITLE.search(begin["options"])
        yield Block(
            page=page,
            line=number + 1,
            language=begin["language"],
            title=title[1] if title else None,
            marker=marker[1] if marker else None,
            lines=body,
        )
        number += length + 2
