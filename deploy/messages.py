"""Writes ``docs/messages.md``: every error message of driver, providers and guest, from their sources.

``make messages`` runs it; a test fails when what is committed differs. A message is the text that an
exception of this project is made with; ``…`` stands for what differs from one time to the next.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from driver import endpoint
from driver import errors as driver_errors
from driver.problems import Problem
from providers import errors as provider_errors

TOP: Final = Path(__file__).parents[1]
PAGE: Final = TOP / "docs" / "messages.md"
_HOST: Final = ("driver", "providers")
_GUEST: Final = ("agent",)
_RULE: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
#: What a text needs of its own to be found by: as many letters beside ``…``.
_LEAST_LETTERS: Final = 8
#: Bases of this project's own exceptions; their own messages are not for users.
_BUILT_IN: Final = frozenset({"Exception", "OSError", "RuntimeError", "ValueError"})
#: What can be wrong with a StorageClass is no exception before it is raised; its last argument is the text.
_PROBLEM: Final = Problem.__name__
_BEGIN: Final = "<!-- made by `make messages`: begin -->\n"
_END: Final = "<!-- made by `make messages`: end -->\n"


@dataclass(frozen=True, order=True)
class Message:
    """A message of the exception ``error``, with its gRPC ``status`` (host) or its ``rule`` (guest)."""

    text: str
    error: str
    status: str
    rule: str | None


@functools.cache
def messages(*packages: str) -> tuple[Message, ...]:
    """Every message that the code of ``packages`` can make an exception with, sorted by its text."""
    files = [file for package in packages for file in sorted((TOP / package).rglob("*.py"))]
    trees = {file: ast.parse(file.read_text()) for file in files}
    errors = _exceptions(trees.values())
    found = set()
    for file, tree in trees.items():
        name = ".".join(file.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(tree):
            error = _called(node)
            if not (isinstance(node, ast.Call) and node.args and error in errors):
                continue
            module = importlib.import_module(name)
            given = [list(texts(argument, module, tree)) for argument in node.args]
            rule = given[0][0] if len(given) > 1 and given[0] and _RULE.fullmatch(given[0][0]) else None
            for text in given[-1] if error == _PROBLEM else given[1 if rule else 0]:
                if rule or sum(letter.isalpha() for letter in text) >= _LEAST_LETTERS:
                    found.add(Message(text, str(error), _status(_resolved(node.func, module)), rule))
    return tuple(sorted(found))


def render() -> str:
    """The page as it should be."""
    page = PAGE.read_text()
    before, rest = page.split(_BEGIN)
    host = {(_cell(message.text), message.status) for message in messages(*_HOST)}
    guest = {(f"`{message.rule}`", _cell(message.text)) for message in messages(*_GUEST) if message.rule}
    parts = [
        "## Of the driver and its providers\n",
        "| Message | Status |",
        "| --- | --- |",
        *(f"| {text} | {code} |" for text, code in sorted(host, key=lambda row: row[0].lower())),
        "\n## Of the guest\n",
        "| Rule | Message |",
        "| --- | --- |",
        *(f"| {rule} | {text} |" for rule, text in sorted(guest)),
        "",
    ]
    return before + _BEGIN + "\n" + "\n".join(parts) + "\n" + _END + rest.split(_END)[1]


def _status(error: Any) -> str:
    """The gRPC status with which a caller gets such an error of the host, or how it gets out otherwise."""
    if error is Problem:
        return driver_errors.InvalidArgument.code.name
    if issubclass(error, provider_errors.ConfigurationError | endpoint.EndpointError):
        return "the process ends"
    code = driver_errors.code_for(Exception.__new__(error))
    return "within another message" if code is None else code.name


def _exceptions(trees: Iterable[ast.Module]) -> set[str]:
    """The names of the classes that are exceptions."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = set(_BUILT_IN)
    while new := {
        one.name for one in classes if one.name not in names and {_name(base) for base in one.bases} & names
    }:
        names |= new
    return names - _BUILT_IN | {_PROBLEM}


def texts(node: ast.expr, module: ModuleType, tree: ast.Module) -> Iterator[str]:
    """The texts that an expression can have, as far as the sources tell."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield from _joined(parts, module, tree)
        case ast.BinOp(left=first, op=ast.Add(), right=second):
            yield from _joined([first, second], module, tree)
        case ast.FormattedValue(
            value=ast.Constant() | ast.Name() | ast.Attribute() as inner, format_spec=None
        ):
            yield from _constant(inner, module)
        case ast.IfExp(body=first, orelse=second):
            yield from texts(first, module, tree)
            yield from texts(second, module, tree)
        case ast.Call(func=ast.Name(id=name)):
            for value in _returned(name, tree):
                yield from texts(value, module, tree)
        case ast.Name(id=name) if name.islower():
            for value in _assigned(name, tree):
                yield from texts(value, module, tree)
        case ast.Name() | ast.Attribute():
            yield from _constant(node, module)


def _joined(parts: Iterable[ast.expr], module: ModuleType, tree: ast.Module) -> list[str]:
    """Each way in which the parts of a text can follow each other."""
    joined = [""]
    for part in parts:
        more = list(texts(part, module, tree)) or ["…"]
        joined = [text + one for text in joined for one in more]
    return joined


def _returned(name: str, tree: ast.Module) -> Iterator[ast.expr]:
    """What the functions of that name in a module return."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == name:
            for part in ast.walk(function):
                if isinstance(part, ast.Return) and part.value is not None:
                    yield part.value


def _assigned(name: str, tree: ast.Module) -> Iterator[ast.expr]:
    """The texts that a module's functions give to their variables of that name."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Constant() | ast.JoinedStr() as value):
                if found == name:
                    yield value


def _constant(node: ast.expr, module: ModuleType) -> Iterator[str]:
    """What a module's constant (in capitals) holds."""
    value = _resolved(node, module)
    if isinstance(value, str | int) and ast.unparse(node).rpartition(".")[2].strip("_").isupper():
        yield str(value)


def _resolved(node: ast.expr, module: ModuleType) -> Any:
    """What a name, with or without dots, means in a module; None if it is none of the module's own."""
    value: object = module
    for name in ast.unparse(node).split("."):
        value = getattr(value, name, None)
    return value


def _called(node: ast.AST) -> str | None:
    return _name(node.func) if isinstance(node, ast.Call) else None


def _name(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None


def _cell(text: str) -> str:
    """``text`` in a table's cell, as code, so that it is found as it is printed."""
    return f"`{text}`".replace("|", "\\|").replace("\n", " ") if "`" not in text else text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render())
