"""Which containers use which volumes: a volume is closed when the last of them is gone.

Kept in a file in the guest's memory, so that a proxy that is restarted knows what it must not close.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.annotation import CloudVolume
from agent.errors import Unavailable


@dataclass(frozen=True)
class Hold:
    """One attempt to create a container, and the volumes it took."""

    container_id: str
    volumes: tuple[CloudVolume, ...]
    usage_figures: bool = True
    """Whether the policy of then lets the host know how full they are."""


class Holds:
    """Counts the containers of each volume. Safe to share between threads.

    Raises:
        Unavailable: ``file`` can't be read; without it nobody knows what is in use.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._held: list[Hold] = _load(file)
        self._volume_locks: dict[str, threading.Lock] = {}

    @contextmanager
    def working_on(self, names: Sequence[str]) -> Iterator[None]:
        """Keep others from mounting or closing the volumes of these names meanwhile."""
        with ExitStack() as stack:
            for name in sorted(set(names)):  # In one order, so that no two wait for each other.
                with self._lock:
                    lock = self._volume_locks.setdefault(name, threading.Lock())
                stack.enter_context(lock)
            yield

    def add(self, hold: Hold) -> None:
        """Count a hold; write it down before anything relies on it.

        Raises:
            Unavailable: it can't be written down; it does not count.
        """
        with self._lock:
            self._keep([*self._held, hold])

    def drop(self, hold: Hold) -> list[str]:
        """Forget one hold; the names of its volumes that nobody holds any more."""
        with self._lock:
            self._keep([one for one in self._held if one is not hold])
            held = self._names()
        return [volume.name for volume in hold.volumes if volume.name not in held]

    def of(self, container_id: str) -> list[Hold]:
        """All holds of a container."""
        with self._lock:
            return [one for one in self._held if one.container_id == container_id]

    def all(self) -> list[Hold]:
        """All holds there are."""
        with self._lock:
            return list(self._held)

    def volumes(self) -> list[CloudVolume]:
        """The volumes that are held, as first described."""
        found: dict[str, CloudVolume] = {}
        for hold in self.all():
            for volume in hold.volumes:
                found.setdefault(volume.name, volume)
        return list(found.values())

    def shows_usage(self, name: str) -> bool:
        """Whether all containers of a volume let the host know how full it is."""
        return all(
            hold.usage_figures for hold in self.all() if any(volume.name == name for volume in hold.volumes)
        )

    def all_show_usage(self) -> bool:
        """Whether all containers with volumes let the host know how full those are."""
        return all(hold.usage_figures for hold in self.all() if hold.volumes)

    def _names(self) -> set[str]:
        return {volume.name for hold in self._held for volume in hold.volumes}

    def _keep(self, held: list[Hold]) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = self._file.with_suffix(".new")
            scratch.write_text(json.dumps([asdict(one) for one in held]))
            scratch.replace(self._file)
        except OSError as error:
            raise Unavailable("state-unwritable", f"cannot write {self._file}: {error.strerror}") from None
        self._held = held


def _load(file: Path) -> list[Hold]:
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable("state-unreadable", f"cannot read {file}: {error.strerror}") from None
    try:
        return [
            Hold(
                one["container_id"],
                tuple(CloudVolume(**volume) for volume in one["volumes"]),
                one["usage_figures"],
            )
            for one in json.loads(content.decode())
        ]
    except (ValueError, TypeError, KeyError):
        raise Unavailable(
            "state-unreadable", f"{file} was not written by this version of the agent; restart the VM"
        ) from None
