"""Sizes in whole bytes: from a requested range to the size to create. Integers only, no rounding loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.errors import InvalidArgument, OutOfRange

if TYPE_CHECKING:  # the node role, which uses sizes, loads no provider
    from providers.interface import StorageClassRules

MIB = 1 << 20
GIB = 1 << 30

#: What an encrypted volume needs at least: the header area (4 MiB) and a usable ext4.
ENCRYPTED_MINIMUM_BYTES = 32 * MIB

#: The size when the request names none (it may name only a limit).
DEFAULT_BYTES = GIB


@dataclass(frozen=True)
class SizeRules:
    """What a backend can make: multiples of ``step``, from ``minimum`` to ``maximum`` (all in bytes)."""

    step: int
    minimum: int
    maximum: int

    def round_up(self, size: int) -> int:
        """The smallest size the backend can make that is at least ``size``; it may exceed the maximum."""
        return -(-max(size, self.minimum) // self.step) * self.step

    def round_down(self, size: int) -> int:
        """The largest multiple of the step that is at most ``size``."""
        return size // self.step * self.step


def size_rules(provider: StorageClassRules, parameters: Mapping[str, str], *, encrypted: bool) -> SizeRules:
    """What ``provider`` makes with its (valid) ``parameters``; an encrypted volume needs a little room."""
    minimum, maximum = provider.size_limits(parameters)
    return SizeRules(
        step=provider.size_step_bytes,
        minimum=max(minimum, ENCRYPTED_MINIMUM_BYTES) if encrypted else minimum,
        maximum=maximum,
    )


@dataclass(frozen=True)
class SizeRange:
    """A CapacityRange: bytes, 0 where the request leaves it open.

    Raises:
        InvalidArgument: a number is negative, or the limit is below the requirement.
    """

    required: int = 0
    limit: int = 0

    def __post_init__(self) -> None:
        if self.required < 0 or self.limit < 0:
            raise InvalidArgument(
                f"capacity_range: required_bytes is {self.required} and limit_bytes {self.limit}; "
                "neither can be negative"
            )
        if 0 < self.limit < self.required:
            raise InvalidArgument(
                f"capacity_range: limit_bytes {self.limit} is below required_bytes {self.required}"
            )

    def contains(self, size: int) -> bool:
        """Whether a volume of ``size`` bytes is what was asked for."""
        return self.required <= size and not 0 < self.limit < size

    def choose(self, rules: SizeRules, source_bytes: int = 0) -> int:
        """The size to create; ``source_bytes`` is the size of the content it starts with.

        Raises:
            OutOfRange: the backend can't make a size in this range, or it is below the source's.
        """
        if self.required:
            size = rules.round_up(self.required)
            if size < source_bytes:
                raise OutOfRange(
                    f"required_bytes {self.required} is less than the source's {source_bytes}; "
                    "ask for at least that"
                )
        elif source_bytes:
            size = rules.round_up(source_bytes)
        else:
            size = rules.round_up(min(DEFAULT_BYTES, rules.round_down(self.limit) or DEFAULT_BYTES))
        if size > rules.maximum:
            raise OutOfRange(
                f"{size} bytes are more than the largest volume of this provider, {rules.maximum}"
            )
        if 0 < self.limit < size:
            raise OutOfRange(
                f"limit_bytes {self.limit} leaves no size to create: the smallest that fits is {size} "
                f"(sizes are multiples of {rules.step}, at least {rules.minimum})"
            )
        return size
