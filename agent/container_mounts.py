"""What the host asks to be mounted into a container beside its volumes, and in the VM around them.

A container's mounts take effect in the order of their list: a later one hides what an earlier one put at or
below its destination. What a container writes to a place that the policy names must reach that volume, and
nothing else that the host had mounted there, within it, or over it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent.errors import Refused, shown
from agent.policy import Encryption, Policy

#: Where kubelet keeps what containers get bound: volumes of CSI drivers, and subpaths of any volume.
_KUBELET_FOLDERS: Final = ("/volumes/kubernetes.io~csi/", "/volume-subpaths/")
_MAX_PATH: Final = 4096
"""PATH_MAX of Linux; what is longer would only cost time."""
_AGENT_PLACES: Final = (
    "/run/cloud-volumes",
    "/run/confidential-csi-agent",
    # Whoever writes here chooses the policy, or answers in the data hub's place.
    *("/run/peerpod", "/run/confidential-containers", "/etc/confidential-csi"),
    # Whoever talks to kata-agent itself goes around the proxy.
    "/run/kata-containers/agent.sock",
)
"""Where volumes are mounted in the VM, what the agent remembers of them, and what it believes."""
_MAPPINGS: Final = ("/dev/mapper/", "/dev/dm-")
"""The devices of open volumes: what is on them can be mounted once more."""
_PROCESSES: Final = "/proc"
_WITHOUT_LINKS: Final = frozenset({"tmpfs", "mqueue", "devpts", "proc", "sysfs", "cgroup", "cgroup2"})
"""File systems that are empty when they are mounted, or have no link that leads out of them (``proc`` has
some deeper within, which are looked for in all policies)."""
_BINDS: Final = frozenset({"bind", "rbind"})
_CONTAINERS: Final = "/run/kata-containers/"
_SEPARATORS: Final = re.compile("[=:,]")


@dataclass(frozen=True)
class ContainerMount:
    """One entry of the OCI ``mounts``, as the host wrote it."""

    destination: str
    source: str
    is_volume: bool = False
    """Whether a mounted volume takes the place of the entry."""
    kind: str = "bind"
    """The file system's; options may turn it into a bind all the same."""
    options: tuple[str, ...] = ()

    @property
    def may_hold_links(self) -> bool:
        """Whether the host may have put symbolic links there: a destination below leads where they lead."""
        return not self.is_volume and (self.kind not in _WITHOUT_LINKS or not _BINDS.isdisjoint(self.options))


@dataclass(frozen=True)
class GuestMount:
    """One of the ``storages`` of a call of the agent protocol: what kata-agent mounts in the VM itself."""

    mount_point: str
    source: str
    options: tuple[str, ...] = ()


def normalized(path: str) -> str:
    """``path`` as the kernel reads it, so that no spelling of the host's slips through."""
    # normpath keeps a double slash at the beginning, which POSIX lets systems interpret; Linux does not.
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def refuse_uncovered(policy: Policy, mounts: Sequence[ContainerMount]) -> None:
    """Refuse a container that would write a volume's data to a place that is no volume.

    ``mounts`` are in the order in which they take effect.

    Raises:
        Refused: ``volume-not-covered``: an entry has a destination that the policy names, or the source of a
            CSI volume or a subpath, and no volume covers it. ``volume-shadowed``: an entry hides a volume, or
            lies within or above a place that the policy names, or within another mount of the host's, whose
            links may lead there. ``mount-destination``: a destination that can't be compared.
            ``mount-source``: the host itself binds one of the agent's directories.
    """
    destinations = [_destination(mount) for mount in mounts]
    _refuse_through_processes(mounts, destinations)
    _refuse_hidden(mounts, destinations)
    named = set(policy.volumes or ())
    # What is on an unencrypted volume, the host writes as well.
    plain = {one for one, rules in (policy.volumes or {}).items() if rules.encryption is Encryption.NONE}
    linked = plain | {
        destination for mount, destination in zip(mounts, destinations, strict=True) if mount.may_hold_links
    }
    above_named = {parent for destination in named for parent in _parents(destination)}
    for mount, destination in zip(mounts, destinations, strict=True):
        around = next((parent for parent in _parents(destination) if parent in linked), None)
        if mount.is_volume:
            if destination in plain and around is not None:
                raise _led(destination, around, "mount an unencrypted volume within nothing else")
            continue
        source = normalized(mount.source)
        if _leads_to_agent(mount.source, mount.options):
            raise Refused(
                "mount-source",
                f"{shown(destination)} is bound to {shown(source)}, where only the agent binds anything: "
                "cloud-api-adaptor must leave the volumes to it",
            )
        if destination in named:
            raise Refused(
                "volume-not-covered",
                f"the policy names a volume at {shown(destination)}, but the host brought none for it: what "
                "the container writes there would be lost; check that the disk is attached and that "
                "cloud-api-adaptor sends the cloud_volumes annotation",
            )
        if destination in policy.other_mounts:
            continue
        if destination in above_named:
            raise _shadowed(destination, "above", _below(destination, named))
        within = next((parent for parent in _parents(destination) if parent in named), None)
        if within is not None:
            raise _shadowed(destination, "within", within)
        if named and around is not None:
            raise _led(destination, around, "if that is meant, name it in the policy's other-mounts")
        folder = next((folder for folder in _KUBELET_FOLDERS if folder in f"{source}/"), None)
        if folder is not None:
            raise Refused(
                "volume-not-covered",
                f"{shown(destination)} is bound to {shown(source)}, under {folder.strip('/')}, but no "
                "volume was mounted for it: what the container writes there would be lost; use an encrypted "
                "volume without subPath, or name the place in the policy's other-mounts",
            )


def refuse_guest_mounts(mounts: Iterable[GuestMount]) -> None:
    """Refuse mounts in the VM outside of kata-agent's own folder, or from the agent's directories.

    Elsewhere they would cover the volumes, the policy, the data hub's socket, or programs. Nor may they be
    below a container's root: the kernel propagates them into the container that runs there.

    Raises:
        Refused: ``guest-mount``.
    """
    for mount in mounts:
        # Without a mount point, a storage is not mounted.
        places = _spellings(mount.mount_point) if mount.mount_point else ()
        if not all(map(_is_katas, places)) or _leads_to_agent(mount.source, mount.options):
            raise Refused(
                "guest-mount",
                f"the host asks for a mount of {shown(mount.source)} in the VM at "
                f"{shown(mount.mount_point)}: not within {_CONTAINERS}, below the root of a container, or "
                "from the agent's own directories",
            )


def refuse_root(path: str) -> None:
    """Refuse a container whose root file system is, or has in it, one of the agent's directories.

    Raises:
        Refused: ``mount-source``.
    """
    if _leads_to_agent(path):
        raise Refused(
            "mount-source",
            f"the container's root is {shown(path)}: it is or holds one of the agent's own directories",
        )


def _refuse_through_processes(mounts: Sequence[ContainerMount], destinations: Sequence[str]) -> None:
    """Refuse destinations by way of a process (``/proc/self/root/data``), which lead anywhere."""
    places = {_PROCESSES} | {
        destination
        for mount, destination in zip(mounts, destinations, strict=True)
        if mount.kind == "proc" or normalized(mount.source) == _PROCESSES
    }
    for destination in destinations:
        # What lies immediately within may be a file that is emulated, such as /proc/meminfo.
        if not places.isdisjoint(_parents(posixpath.dirname(destination))):
            raise Refused(
                "mount-destination",
                f"the mount destination {shown(destination)} lies deep within a proc file system, whose "
                "links lead out of it",
            )


def _refuse_hidden(mounts: Sequence[ContainerMount], destinations: Sequence[str]) -> None:
    """Refuse an entry above a volume that comes after it, and so hides it."""
    last = {
        destination: index
        for index, (mount, destination) in enumerate(zip(mounts, destinations, strict=True))
        if mount.is_volume
    }
    earliest: dict[str, tuple[int, str]] = {}
    for destination, index in last.items():
        for parent in _parents(destination):
            earliest[parent] = min(earliest.get(parent, (index, destination)), (index, destination))
    for index, destination in enumerate(destinations):
        if destination in earliest and earliest[destination][0] < index:
            raise Refused(
                "volume-shadowed",
                f"the mount at {shown(destination)} comes after the volume at "
                f"{shown(earliest[destination][1])} and would hide it",
            )


def _destination(mount: ContainerMount) -> str:
    # kata-agent takes no '..' either.
    if ".." in mount.destination.split("/") or len(mount.destination) > _MAX_PATH:
        raise Refused(
            "mount-destination",
            f"the mount destination {shown(mount.destination)} has '..' in it, or more than "
            f"{_MAX_PATH} characters",
        )
    return normalized(mount.destination)


def _spellings(path: str) -> tuple[str, ...]:
    """A path in the VM as it is written, and with the VM's links (such as /var/run) followed.

    One whose end can't be told stands for the root, for everything: one that the kernel would not take, one
    that goes up from kata-agent's working directory, one by way of a process (``/proc/1/root``).
    """
    climbs = not path.startswith("/") and ".." in path.split("/")
    if len(path) > _MAX_PATH or "\0" in path or climbs:
        return ("/",)
    written = normalized(path)
    try:
        spellings = written, os.path.realpath(written)
    except OSError:
        return ("/",)
    return ("/",) if any(one.startswith("/proc/") for one in spellings) else spellings


def _leads_to_agent(source: str, options: Iterable[str] = ()) -> bool:
    """Whether what is mounted from ``source`` is or holds one of the agent's directories or mappings."""
    # Such as lowerdir=/a:/b of an overlay.
    paths = (path for option in options for path in _SEPARATORS.split(option) if path.startswith((".", "/")))
    # Mounts of other containers come without a source.
    return any(
        _is_agents(one) or _covers_agents(one) or one.startswith(_MAPPINGS)
        for path in (source, *paths)
        if path
        for one in _spellings(path)
    )


def _parents(destination: str) -> Iterator[str]:
    """The directories above ``destination``, the nearest first."""
    while destination != "/":
        destination = posixpath.dirname(destination)
        yield destination


def _below(destination: str, named: Iterable[str]) -> str:
    return next(one for one in sorted(named) if destination in _parents(one))


def _is_agents(path: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in _AGENT_PLACES)


def _covers_agents(path: str) -> bool:
    return any(place.startswith(f"{path.rstrip('/')}/") for place in _AGENT_PLACES)


def _is_katas(path: str) -> bool:
    return path.startswith(_CONTAINERS) and "/rootfs/" not in path


def _led(destination: str, around: str, advice: str) -> Refused:
    return Refused(
        "volume-shadowed",
        f"the mount at {shown(destination)} lies within the host's mount at {shown(around)}, where a link "
        f"could lead it over a volume; {advice}",
    )


def _shadowed(destination: str, relation: str, volume: str) -> Refused:
    return Refused(
        "volume-shadowed",
        f"the mount at {shown(destination)} lies {relation} {shown(volume)}, where the policy names a "
        "volume: what the container writes there would not reach it; if that is meant, name "
        f"{shown(destination)} in the policy's other-mounts",
    )
