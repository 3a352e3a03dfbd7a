"""Requests and answers, and the faults that can be put in their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    body: Any = None

    @property
    def changes(self) -> bool:
        """Whether it can change something."""
        return self.method in ("PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: Json | None = None
    headers: dict[str, str] = field(default_factory=dict)


def error(status: int, code: str, message: str = "", **headers: str) -> Answer:
    """An error in ARM's form."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"error": {"code": code, "message": message or f"(a fake) {code}"}}, names)


def throttled(seconds: int) -> Answer:
    """Too many calls."""
    return error(429, "SubscriptionRequestsThrottled", Retry_After=str(seconds))


class Dropped(Exception):
    """The connection breaks in place of an answer."""


Reaction = Answer | type[Dropped]


@dataclass
class Fault:
    """What happens to the next request that ``matches``: ``before`` it is done, or ``after``."""

    matches: Callable[[Request], bool]
    before: Reaction | None = None
    after: Reaction | None = None
    times: int = 1


def change(request: Request) -> bool:
    """Matches what changes something."""
    return request.changes


def poll(request: Request) -> bool:
    """Matches looks at operations."""
    return "/DiskOperations/" in request.path


def method(name: str) -> Callable[[Request], bool]:
    """Matches by method, looks at operations excepted."""
    return lambda request: request.method == name and not poll(request)


def anything(_request: Request) -> bool:
    """Matches every request."""
    return True


def react(reaction: Reaction) -> Answer:
    """The answer, or the broken connection."""
    if isinstance(reaction, Answer):
        return reaction
    raise reaction
