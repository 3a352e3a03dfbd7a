"""What the proxy does to containers: volumes are mounted before the first, and closed after the last.

cloud-api-adaptor asks for volumes with an annotation in CreateContainer. It is consumed here, and so is the
one that makes its forwarder wait for a mount; the OCI mounts are pointed at what this agent mounted. A
container whose volumes are refused is never seen by the upstream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from agent.annotation import ANNOTATION_KEY, CloudVolume, parse_annotation
from agent.container_mounts import (
    ContainerMount,
    GuestMount,
    normalized,
    refuse_guest_mounts,
    refuse_root,
    refuse_uncovered,
)
from agent.errors import AgentError, Refused
from agent.holds import Hold, Holds
from agent.policy import Policy, rules_for
from agent.proxy import Forward, Takeover
from agent.proxy_calls import AGENT_SERVICE, Workers, read_message
from agent.ttrpc_frame import Code, TtrpcConnectionError, TtrpcError
from agent.volumes import MountedVolume, VolumesFailed, VolumeStatus
from proto import agent_pb2, ttrpc_pb2

TARGET_PATH_KEY: Final = "io.confidentialcontainers.org.peerpodvolumes.target_path"
"""Makes cloud-api-adaptor's forwarder wait up to 3 minutes for a mount at each path that it lists."""

_CSI_FOLDER: Final = "/volumes/kubernetes.io~csi/"

_log = logging.getLogger(__name__)


class MountsVolumes(Protocol):
    """What containers need of ``agent.volumes.Volumes``."""

    def mount(self, volumes: Sequence[CloudVolume], policy: Policy) -> list[MountedVolume]:
        """Mount all or none, as ``policy`` says; VolumesFailed says why not."""

    def unmount(self, names: Sequence[str]) -> None:
        """Unmount and close; VolumesFailed says what is in use."""

    def status(self) -> list[VolumeStatus]:
        """What there is in this VM."""


@dataclass(frozen=True)
class _Placed:
    """The OCI mounts that a volume takes the place of, by their position."""

    volume: CloudVolume
    positions: tuple[int, ...]


class Containers:
    """Takes over the calls of the agent protocol that make and remove containers, and that mount for them.

    ``policy`` is asked once for each container: what was checked is what is enforced.
    """

    def __init__(
        self, volumes: MountsVolumes, holds: Holds, policy: Callable[[], Policy], workers: Workers
    ) -> None:
        self._volumes = volumes
        self._holds = holds
        self._policy = policy
        self._workers = workers

    def takeovers(self) -> Mapping[tuple[str, str], Takeover]:
        """The calls to give to the proxy."""
        return {
            (AGENT_SERVICE, "CreateContainer"): self.create,
            (AGENT_SERVICE, "RemoveContainer"): self.remove,
            (AGENT_SERVICE, "DestroySandbox"): self.destroy,
            (AGENT_SERVICE, "CreateSandbox"): self.create_sandbox,
            (AGENT_SERVICE, "UpdateEphemeralMounts"): self.update_mounts,
        }

    async def create(self, request: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        """CreateContainer: mount, rewrite, forward; what fails afterwards lets go of the volumes again."""
        begun = time.monotonic()
        call = read_message(agent_pb2.CreateContainerRequest, request.payload)
        mounts = read_message(agent_pb2.CreateContainerMounts, request.payload)
        hold = await self._workers.run(partial(self._prepare, call, mounts))
        if hold is None:
            return await forward(request)
        changed = ttrpc_pb2.Request()
        changed.CopyFrom(request)
        changed.payload = call.SerializeToString()
        try:
            if request.timeout_nano > 0:
                changed.timeout_nano = _remaining(request.timeout_nano, begun)
            response = await forward(changed)
        except TtrpcConnectionError as error:
            if not error.sent:
                await self._workers.run(partial(self._release, hold))
            # Else the container may exist: its volumes stay until it, or the sandbox, is removed.
            raise
        except TtrpcError:
            await self._workers.run(partial(self._release, hold))
            raise
        if response.status.code not in (0, Code.DEADLINE_EXCEEDED):
            await self._workers.run(partial(self._release, hold))
        return response

    async def remove(self, request: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        """RemoveContainer: once the container is gone, so is its claim on volumes."""
        call = read_message(agent_pb2.RemoveContainerRequest, request.payload)
        response = await forward(request)
        if not response.status.code:
            for hold in self._holds.of(call.container_id):
                await self._workers.run(partial(self._release, hold))
        return response

    async def destroy(self, request: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        """DestroySandbox: everything is closed before the answer, after which the VM may be gone."""
        try:
            return await forward(request)
        finally:
            try:
                await self._workers.run(self._release_all)
            except TtrpcError as error:
                _log.warning("not all volumes could be closed: %s", error.message)

    async def create_sandbox(self, request: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        """CreateSandbox: forwarded, unless it mounts something over the agent's directories."""
        call = read_message(agent_pb2.CreateSandboxRequest, request.payload)
        await self._check_storages(call.storages)
        return await forward(request)

    async def update_mounts(self, request: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        """UpdateEphemeralMounts: the same; it could make a read-only volume writable."""
        call = read_message(agent_pb2.UpdateEphemeralMountsRequest, request.payload)
        await self._check_storages(call.storages)
        return await forward(request)

    async def _check_storages(self, storages: Iterable[agent_pb2.Storage]) -> None:
        await self._workers.run(partial(_refuse_guest_mounts, storages))

    def _prepare(
        self, call: agent_pb2.CreateContainerRequest, mounts: agent_pb2.CreateContainerMounts
    ) -> Hold | None:
        """Mount the container's volumes and change ``call``; None when there is nothing to change.

        Raises:
            AgentError, VolumesFailed: the container must not be created; nothing is left of the attempt.
        """
        _refuse_guest_mounts(mounts.storages)
        refuse_root(mounts.OCI.Root.Path)
        policy = self._policy()
        text = call.OCI.Annotations.get(ANNOTATION_KEY)
        volumes = parse_annotation(text) if text else ()
        placed = [_place(volume, call.OCI.Mounts) for volume in volumes]
        _check(policy, placed, call.OCI.Mounts, [shared.dst_path for shared in mounts.shared_mounts])
        if text is None:
            return None
        hold = Hold(call.container_id, volumes, policy.agent.usage_figures)
        names = [volume.name for volume in volumes]
        with self._holds.working_on(names):
            self._refuse_other_disks(volumes)
            sources = {one.name: one.source for one in self._volumes.mount(volumes, policy)}
            try:
                self._holds.add(hold)
            except AgentError:
                self._close([name for name in names if not self._is_held(name)])
                raise
        for key in (ANNOTATION_KEY, TARGET_PATH_KEY):
            call.OCI.Annotations.pop(key, None)
        for one in placed:
            for position in one.positions:
                call.OCI.Mounts[position].source = sources[one.volume.name]
                call.OCI.Mounts[position].type = "bind"
                _drop_option(call.OCI.Mounts[position], "remount")
        return hold

    def _refuse_other_disks(self, volumes: Sequence[CloudVolume]) -> None:
        """A name stands for one disk as long as somebody holds it."""
        held = {volume.name: volume for volume in self._holds.volumes()}
        for volume in volumes:
            before = held.get(volume.name)
            if before is not None and before.disk_id != volume.disk_id:
                raise Refused(
                    "disk-differs",
                    f"{volume.name} is the disk {before.disk_id[:100]!a} for another container of this "
                    f"pod, and not {volume.disk_id[:100]!a}",
                )

    def _release(self, hold: Hold) -> None:
        with self._holds.working_on([volume.name for volume in hold.volumes]):
            self._close(self._holds.drop(hold))

    def _release_all(self) -> None:
        for hold in self._holds.all():
            self._release(hold)
        names = [status.name for status in self._volumes.status()]
        with self._holds.working_on(names):
            self._close([name for name in names if not self._is_held(name)])

    def _is_held(self, name: str) -> bool:
        return any(volume.name == name for volume in self._holds.volumes())

    def _close(self, names: Sequence[str]) -> None:
        """Close volumes that nobody holds. One that can't be closed is only reported: it does no harm."""
        try:
            self._volumes.unmount(names)
        except (VolumesFailed, AgentError, OSError) as error:
            _log.warning("volumes stay open until the sandbox is destroyed: %s", error)


def _refuse_guest_mounts(storages: Iterable[agent_pb2.Storage]) -> None:
    refuse_guest_mounts(
        GuestMount(storage.mount_point, storage.source, tuple(storage.options)) for storage in storages
    )


def _check(
    policy: Policy, placed: Sequence[_Placed], mounts: Sequence[agent_pb2.Mount], shared: Sequence[str]
) -> None:
    """Ask the policy, for each volume at each place where it is put, and for all else that is mounted.

    ``shared`` are the destinations of mounts that come from other containers.
    """
    rules = rules_for(policy, [one.volume for one in placed])
    taken: set[int] = set()
    for one in placed:
        if not taken.isdisjoint(one.positions):
            raise Refused(
                "mount-ambiguous", f"{one.volume.name} and another volume want the same mount entry"
            )
        taken.update(one.positions)
        for position in one.positions:
            other = replace(one.volume, mount_point=normalized(mounts[position].destination))
            if rules_for(policy, [other])[other.name] != rules[one.volume.name]:
                raise Refused(
                    "policy-destination",
                    f"{one.volume.name} is mounted at {one.volume.mount_point} and at "
                    f"{other.mount_point[:100]!a}, for which the policy has different rules",
                )
    refuse_uncovered(
        policy,
        [
            *(
                ContainerMount(
                    mount.destination, mount.source, position in taken, mount.type, tuple(mount.options)
                )
                for position, mount in enumerate(mounts)
            ),
            # kata-agent adds these when the container's own are in place.
            *(ContainerMount(destination, "") for destination in shared),
        ],
    )


def _place(volume: CloudVolume, mounts: Sequence[agent_pb2.Mount]) -> _Placed:
    """Find the OCI mounts of a volume.

    The annotation names one destination even where the pod mounts the claim twice; the other entries are
    known by the same source, the folder in which kubelet expects the claim's data.
    """
    positions = {
        index for index, mount in enumerate(mounts) if normalized(mount.destination) == volume.mount_point
    }
    if not positions:
        raise Refused(
            "mount-missing",
            f"{volume.name} is for {volume.mount_point}, but the container has no mount there",
        )
    sources = {mounts[index].source for index in positions}
    claims = {source for source in sources if _CSI_FOLDER in source}
    positions |= {index for index, mount in enumerate(mounts) if mount.source in claims}
    return _Placed(volume, tuple(sorted(positions)))


def _drop_option(mount: agent_pb2.Mount, dropped: str) -> None:
    """Without ``remount``, which would leave what is there already in the volume's place."""
    kept = [option for option in mount.options if option != dropped]
    del mount.options[:]
    mount.options.extend(kept)


def _remaining(timeout_nano: int, begun: float) -> int:
    """Nanoseconds that the caller still waits.

    Raises:
        TtrpcError: none.
    """
    remaining = timeout_nano - int((time.monotonic() - begun) * 1e9)
    if remaining <= 0:
        raise TtrpcError(Code.DEADLINE_EXCEEDED, "mounting the volumes took longer than the caller waits")
    return remaining
