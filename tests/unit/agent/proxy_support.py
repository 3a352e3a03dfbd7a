"""A proxy that runs in a thread of the test, and volumes that only count."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.annotation import CloudVolume
from agent.errors import AgentError, Refused, Unavailable
from agent.holds import Holds
from agent.policy import DEFAULT_POLICY, Policy
from agent.proxy import Address, Proxy, Takeover
from agent.proxy_calls import Workers
from agent.proxy_containers import Containers
from agent.volumes import Failure, MountedVolume, VolumesFailed, VolumeStatus


@contextmanager
def running_proxy(
    listen: Address,
    upstream: Address,
    takeovers: Mapping[tuple[str, str], Takeover] | None = None,
    **options: Any,
) -> Iterator[Address]:
    """Serves in a thread; yields the bound address. What asyncio reports as unhandled fails the test."""
    loop = asyncio.new_event_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def make() -> tuple[Proxy, Address]:
        proxy = Proxy(listen, upstream, takeovers or {}, **{"upstream_wait": 2.0, **options})
        return proxy, await proxy.start()

    try:
        proxy, bound = asyncio.run_coroutine_threadsafe(make(), loop).result(60)
        try:
            yield bound
        finally:
            asyncio.run_coroutine_threadsafe(proxy.stop(grace=1.0), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
    assert not unhandled, unhandled


@contextmanager
def unix_proxy(
    folder: Path, takeovers: Mapping[tuple[str, str], Takeover] | None = None, **options: Any
) -> Iterator[Path]:
    """From ``folder/p`` to ``folder/u``."""
    with running_proxy(
        Address(path=str(folder / "p")), Address(path=str(folder / "u")), takeovers, **options
    ):
        yield folder / "p"


class CountingVolumes:
    """Mounts nothing, and remembers what it would have; stricter than the real ones about what is asked."""

    def __init__(self) -> None:
        self.mounted: set[str] = set()
        self.mounts: list[str] = []
        self.policies: list[Policy] = []
        self.unmounts: list[str] = []
        self.refuse: dict[str, AgentError] = {}
        self.busy: set[str] = set()
        self.delay = threading.Event()
        self.delay.set()

    def mount(self, volumes: Sequence[CloudVolume], policy: Policy) -> list[MountedVolume]:
        assert self.delay.wait(60)
        self.policies.append(policy)
        failures = [Failure(one.name, self.refuse[one.name]) for one in volumes if one.name in self.refuse]
        if failures:
            raise VolumesFailed(failures)
        for one in volumes:
            self.mounted.add(one.name)
            self.mounts.append(one.name)
        return [MountedVolume(one.name, one.mount_point, one.mount_directory) for one in volumes]

    def unmount(self, names: Sequence[str]) -> None:
        failures = []
        for name in names:
            assert name in self.mounted, f"{name} is closed twice"
            if name in self.busy:
                failures.append(Failure(name, Unavailable("mount-busy", "in use")))
                continue
            self.mounted.remove(name)
            self.unmounts.append(name)
        if failures:
            raise VolumesFailed(failures)

    def status(self) -> list[VolumeStatus]:
        return [VolumeStatus(name, mounted=True, open=True, shielded=True) for name in sorted(self.mounted)]


def containers(
    volumes: CountingVolumes, state: Path, policy: Policy = DEFAULT_POLICY
) -> Mapping[tuple[str, str], Takeover]:
    return Containers(volumes, Holds(state), lambda: policy, Workers()).takeovers()


REFUSAL = Refused("header-not-authenticated", "no record on the disk fits its header")
