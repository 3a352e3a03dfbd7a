"""The guard: owns the data hub's socket, and opens encrypted disks itself in the hub's place.

Unmodified cloud-api-adaptor asks the hub to open (or, for a disk without LUKS magic, to format) a disk and
to mount it. Such a call is answered here, with the header checks and the persistence of this agent, whatever
``sourceType`` it carries. All other calls go to the real hub, whose socket was moved. What the guard can't
see is a mount that never asks the hub: a volume whose encryption the host stripped.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from agent.annotation import CloudVolume
from agent.devices import DeviceFinder
from agent.errors import AgentError, Refused, Unavailable
from agent.keys import key_uri
from agent.policy import Policy
from agent.proxy import Forward, Takeover
from agent.proxy_calls import Workers, read_message
from agent.proxy_containers import MountsVolumes
from agent.volumes import VolumesFailed
from proto import cdh_pb2, ttrpc_pb2

SECURE_MOUNT: Final = ("api.SecureMountService", "SecureMount")

_VOLUME_TYPE: Final = "block-device"
_SCHEME: Final = "kbs:///"
_MOUNT_POINT: Final = re.compile(r"/run/cloud-volumes/vol-(0|[1-9][0-9]?|1[0-9]{2})", re.ASCII)
_DEVICE_ID: Final = re.compile(r"[0-9]{1,4}:[0-9]{1,8}", re.ASCII)
_PLACEHOLDER: Final = "/volume"
"""A mount point for the built-in policy, which treats all alike."""

_log = logging.getLogger(__name__)


class GivenDisks(DeviceFinder):
    """Takes the kernel's name of a disk, as the caller gave it, for the disk id."""

    def _candidates(self, volume: CloudVolume) -> set[str]:
        name = Path(volume.disk_id).name
        return {name} if (self._blocks / name).exists() else set()


class Guard:
    """Takes over the data hub's SecureMount for encrypted disks."""

    def __init__(
        self,
        volumes: MountsVolumes,
        policy: Callable[[], Policy],
        workers: Workers,
        *,
        sysfs: Path = Path("/sys"),
    ) -> None:
        self._volumes = volumes
        self._policy = policy
        self._workers = workers
        self._sysfs = sysfs
        # A shield without mapping is a leftover, unless a mount is at work on it.
        self._mounting = threading.Lock()

    def takeovers(self) -> Mapping[tuple[str, str], Takeover]:
        """The call to give to the proxy."""
        return {SECURE_MOUNT: self.secure_mount}

    async def secure_mount(self, request: ttrpc_pb2.Request, forward: Forward) -> ttrpc_pb2.Response:
        """SecureMount: a disk that has a key, or is for a cloud volume, is mounted here.

        Others go on: Kata's own scratch disks, which get a throw-away key, and volumes that are no disks.
        """
        call = read_message(cdh_pb2.SecureMountRequest, request.payload)
        if call.volume_type != _VOLUME_TYPE or not _is_ours(call):
            return await forward(request)
        await self._workers.run(partial(self._mount, call))
        return ttrpc_pb2.Response(payload=cdh_pb2.SecureMountResponse().SerializeToString())

    def sweep(self) -> None:
        """Remove the shields whose mapping the caller closed: it knows nothing of them."""
        with self._mounting:
            for status in self._volumes.status():
                if status.shielded and not status.open:
                    try:
                        self._volumes.unmount([status.name])
                    except (AgentError, VolumesFailed) as error:
                        _log.warning("a shield is left: %s", error)

    def _mount(self, call: cdh_pb2.SecureMountRequest) -> None:
        policy = self._policy()
        volume = self._volume(call, policy)
        self.sweep()
        with self._mounting:
            self._volumes.mount([volume], policy)

    def _volume(self, call: cdh_pb2.SecureMountRequest, policy: Policy) -> CloudVolume:
        """What the call asks for, in the agent's own terms.

        Raises:
            Refused: it is not what cloud-api-adaptor sends (``guard-request``), or the policy does not allow
                it.
        """
        place = _MOUNT_POINT.fullmatch(call.mount_point.rstrip("/"))
        if place is None:
            raise _unexpected("mount_point", call.mount_point, "/run/cloud-volumes/vol-N")
        name = f"vol-{place[1]}"
        options = dict(call.options)
        for option, allowed in (
            ("mapperName", (f"caa-{name}", "")),
            ("targetType", ("fileSystem",)),
            ("encryptionType", ("luks2", "")),
            ("filesystemType", ("ext4", "")),
        ):
            value = options.get(option, "")
            if value not in allowed:
                raise _unexpected(option, value, " or ".join(filter(None, allowed)))
        uri = options.get("key", "")
        if not uri.startswith(_SCHEME):
            raise _unexpected("key", uri, f"{_SCHEME}repository/type/tag")
        key_id = uri.removeprefix(_SCHEME)
        key_uri(key_id)
        return CloudVolume(
            index=int(place[1]),
            mount_point=_destination(policy, key_id),
            fs_type="ext4",
            lun=None,
            disk_id=self._device(options),
            fs_group=None,
            encrypt_type="luks2",
            key_id=key_id,
        )

    def _device(self, options: Mapping[str, str]) -> str:
        number = options.get("deviceId", "")
        if number:
            if not _DEVICE_ID.fullmatch(number):
                raise _unexpected("deviceId", number, "MAJOR:MINOR")
            link = self._sysfs / "dev/block" / number
            if not link.exists():
                raise Unavailable("device-missing", f"there is no block device {number}")
            return f"/dev/{link.resolve().name}"
        path = options.get("devicePath", "")
        if not path.startswith("/dev/") or not path.isprintable() or ".." in path.split("/"):
            raise _unexpected("devicePath", path, "a path in /dev")
        if not Path(path).exists():
            raise Unavailable("device-missing", f"there is no {path[:100]!a}")
        return str(Path(path).resolve())


def _destination(policy: Policy, key_id: str) -> str:
    """The mount point of the policy's entry for a key; the call does not tell where the volume goes."""
    entries = policy.volumes
    if entries is None:
        return _PLACEHOLDER
    found = sorted(destination for destination, rules in entries.items() if rules.key_id == key_id)
    if not found:
        raise Refused("policy-key", f"the policy has no entry with the key {key_id}")
    if len(found) > 1:
        raise Refused(
            "policy-ambiguous",
            f"the policy has the key {key_id} at {found[0][:100]!a} and {found[1][:100]!a}; under the "
            "guard each entry needs a key of its own",
        )
    return found[0]


def _is_ours(call: cdh_pb2.SecureMountRequest) -> bool:
    return bool(
        call.options.get("key")
        or call.options.get("mapperName", "").startswith("caa-")
        or call.mount_point.startswith("/run/cloud-volumes")
    )


def _unexpected(what: str, value: str, expected: str) -> Refused:
    return Refused(
        "guard-request", f"SecureMount of a disk with {what} {value[:100]!a}; the guard expects {expected}"
    )
