"""How this EC2 behaves: seconds, limits, token buckets, faults."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class Bucket:
    """A token bucket: ``burst`` calls at once, then ``rate`` a second."""

    burst: int
    rate: float


@dataclass(frozen=True)
class Rules:
    """Times are in seconds."""

    zones: tuple[str, ...] = ("us-east-1a", "us-east-1b", "us-east-1c")
    lag: float = 0.01
    """Answers to questions show what was true that long ago."""
    creating: float = 0.02
    deleting: float = 0.02
    snapshot: float = 0.02
    modifying: float = 0.02
    optimizing: float = 0.02
    cool_down: float = 0.0
    """After a modification began, until the next may."""
    volumes: int = 10_000
    """Quota."""
    buckets: Mapping[str, Bucket] = field(default_factory=dict)
    """By action; no bucket, no throttling."""


class Fault(Enum):
    """What can happen to one call."""

    LOST_REQUEST = "the connection ends before the request was seen"
    LOST_ANSWER = "the connection ends after the request was done"
    SERVER_ERROR = "HTTP 500, and nothing was done"
    THROTTLED = "RequestLimitExceeded, and nothing was done"
    DENIED = "UnauthorizedOperation, and nothing was done"
    HANG = "done, but answered half a minute later"


@dataclass
class FillState:
    """A bucket's level."""

    bucket: Bucket
    level: float
    at: float

    @classmethod
    def full(cls, bucket: Bucket) -> FillState:
        """As before the first call."""
        return cls(bucket, bucket.burst, time.monotonic())

    def take(self) -> bool:
        """Whether the call gets through; one that does not takes nothing."""
        now = time.monotonic()
        self.level = min(self.bucket.burst, self.level + (now - self.at) * self.bucket.rate)
        self.at = now
        if self.level < 1:
            return False
        self.level -= 1
        return True


class Ec2Error(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, message: str = "", status: int = 400) -> None:
        super().__init__(code)
        self.code = code
        self.message = message or code
        self.status = status
