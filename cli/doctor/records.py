"""Kata's direct-volume root on this node: the directory itself, and each record in it.

cloud-api-adaptor attaches every record's disk to a PodVM in the order of the directories' names, so one that
is damaged or left behind moves all later disks to another place.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.doctor.model import Finding, fail, ok, warn
from cli.scene import Paths, Scene
from driver import mountinfo
from driver.direct_volumes import WORK_PREFIX, pod_directory, read_regular, target_path_of

_SANDBOX: Final = re.compile(r"[0-9a-f]{64}")
_PREPARING_SECONDS: Final = 60.0
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Record:
    """A directory below the root whose name is a target path."""

    directory: Path
    target: str

    @property
    def name(self) -> str:
        """For people: the target path says more than the encoded name."""
        return f"the record of {self.target}"

    @property
    def pod_uid(self) -> str:
        """Empty if the target is not a path of kubelet's."""
        pod = pod_directory(self.target)
        return Path(pod).name if pod else ""

    @property
    def kubelet_root(self) -> str:
        """Of the kubelet that chose the target; empty as above."""
        pod = pod_directory(self.target)
        return str(Path(pod).parents[1]) if pod else ""

    def why_stale(self, paths: Paths) -> str | None:
        """Why it belongs to no pod any more; None if that can't be said.

        kubelet makes a pod's directory before it publishes, removes it after it unpublished, and never uses a
        uid again.
        """
        pods = paths.kubelet_root / "pods"
        if not self.pod_uid or Path(self.kubelet_root) != paths.kubelet_root or not pods.is_dir():
            return None
        if (pods / self.pod_uid).exists() or Path(self.target).exists():
            return None
        return f"kubelet has no pod {self.pod_uid} any more"

    def read(self) -> mountinfo.MountInfo:
        """Raises mountinfo.Damaged or OSError."""
        return mountinfo.decode(read_regular(self.directory / mountinfo.FILE_NAME))

    def device(self) -> str | None:
        """The disk's id; None if the record is damaged, which is another check's finding."""
        try:
            return self.read().device
        except (mountinfo.Damaged, OSError):
            return None

    def beside(self) -> list[Path]:
        """What stands beside ``mountInfo.json``."""
        return sorted(one for one in self.directory.iterdir() if one.name != mountinfo.FILE_NAME)


def records(scene: Scene) -> list[Record]:
    """All records, by name. Raises Skipped where there is no root."""
    root = scene.require_records()
    found = []
    for directory in sorted(root.iterdir()):
        target = target_path_of(directory.name)
        if target is not None and directory.is_dir():
            found.append(Record(directory, target))
    return found


# --- the root -------------------------------------------------------------------------------------------


def root(scene: Scene) -> Iterable[Finding]:
    """The root is a directory of the host's, and can be written to."""
    scene.require_node()
    wrong = scene.records.readiness()
    if wrong is not None:
        return [
            fail(
                wrong,
                "pods get no volumes: let the node plugin's hostPath (node.directVolumesRoot) be the "
                f"directory that Kata uses, {scene.paths.direct_volumes}",
            )
        ]
    return [ok(f"{scene.paths.direct_volumes} is there and can be written to")]


def root_owner(scene: Scene) -> Iterable[Finding]:
    """The root belongs to root, and nobody else can write to it."""
    path = scene.require_records()
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    found = []
    if (status.st_uid, status.st_gid) != (0, 0):
        found.append(
            fail(f"{path} belongs to {status.st_uid}:{status.st_gid}, not to root", f"chown root:root {path}")
        )
    if mode & _OTHERS_MAY_WRITE:
        found.append(
            fail(
                f"{path} has mode {mode:04o}: others than root can write to it, and so choose which disks "
                "pods get",
                f"chmod 0755 {path}",
            )
        )
    if mode & 0o700 != 0o700:
        found.append(fail(f"{path} has mode {mode:04o}: its owner can't use it", f"chmod 0755 {path}"))
    return found or [ok(f"{path} belongs to root and has mode {mode:04o}")]


def root_entries(scene: Scene) -> Iterable[Finding]:
    """Nothing stands in the root but records."""
    path = scene.require_records()
    found = []
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(WORK_PREFIX):
            if is_abandoned(entry, scene.now()):
                found.append(
                    warn(
                        f"{entry} was left by a node plugin that was killed",
                        "restart the node plugin, which clears it away, or use --fix",
                    )
                )
        elif target_path_of(entry.name) is None or not entry.is_dir():
            found.append(
                warn(
                    f"{entry} is no record: its name is not the base64 of a path, or it is no directory",
                    "find out who put it there and remove it; Kata and cloud-api-adaptor pass over it",
                )
            )
    return found or [ok("nothing but records of volumes")]


def is_abandoned(work: Path, now: float) -> bool:
    """Whether no process prepares or takes apart a record there: it is not new, and nobody holds its lock."""
    try:
        if now - work.stat().st_mtime < _PREPARING_SECONDS:
            return False
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


# --- each record ----------------------------------------------------------------------------------------


def damaged(scene: Scene) -> Iterable[Finding]:
    """Each ``mountInfo.json`` is what Kata and cloud-api-adaptor both can read."""
    return _each(scene, _damage, "each can be read")


def metadata_types(scene: Scene) -> Iterable[Finding]:
    """Each metadata value is a JSON string."""
    return _each(scene, _wrong_types, "all metadata is text")


def stray_files(scene: Scene) -> Iterable[Finding]:
    """Beside ``mountInfo.json`` stands nothing but Kata's notes of sandboxes."""
    return _each(scene, _strays, "nothing beside them but notes of sandboxes")


def modes(scene: Scene) -> Iterable[Finding]:
    """Records belong to root, and nobody else can write to them."""
    return _each(scene, _wrong_modes, "each is root's, and nobody else can write to it")


def devices(scene: Scene) -> Iterable[Finding]:
    """No record names a file or device of this node, and no two records name one disk."""
    found: list[Finding] = []
    seen: dict[str, str] = {}
    for record in records(scene):
        device = record.device()
        if device is None:
            continue
        if device.startswith("/") and Path(device).exists():
            found.append(
                fail(
                    f"{record.name} names {device}, which exists on this node",
                    "Kata would try to hot-plug it, which a remote hypervisor can't: the id must be the "
                    "cloud's; update the driver that wrote it, then delete the pod",
                )
            )
        if device in seen:
            found.append(
                fail(
                    f"two records name the disk {device}: those of {seen[device]} and of {record.target}",
                    "one of the two was left behind: see record-stale, and look for the pods of both",
                )
            )
        seen[device] = record.target
    return found or [ok(f"{len(seen)} record(s), each with a disk of its own that is not on this node")]


def several_pods(scene: Scene) -> Iterable[Finding]:
    """One pod with volumes on this node at a time."""
    found = records(scene)
    pods = sorted({one.pod_uid for one in found if one.pod_uid and one.why_stale(scene.paths) is None})
    if len(pods) > 1:
        return [
            warn(
                f"{len(pods)} pods on this node have volumes: {', '.join(pods)}",
                "cloud-api-adaptor gives every PodVM all of a node's volumes, so the next of these pods "
                "can't start: keep them on different nodes (podAntiAffinity; docs/one-pod-per-node.md)",
            )
        ]
    return [ok(f"{len(pods)} pod(s) with volumes on this node")]


# --- one record -----------------------------------------------------------------------------------------


def _damage(record: Record) -> Iterator[Finding]:
    try:
        record.read()
    except FileNotFoundError:
        why = f"{mountinfo.FILE_NAME} is missing"
    except OSError as error:
        why = f"{mountinfo.FILE_NAME} can't be read: {error.strerror}"
    except mountinfo.Damaged as error:
        if list(_wrong_types(record)):
            return  # that check says it better
        why = str(error)
    else:
        return
    yield fail(
        f"{record.name} is damaged: {why}",
        "delete its pod, whose next start writes it anew; if there is no such pod any more, remove "
        f"{record.directory}",
    )


def _wrong_types(record: Record) -> Iterator[Finding]:
    try:
        content = json.loads(read_regular(record.directory / mountinfo.FILE_NAME))
    except (OSError, ValueError, RecursionError):
        return  # record-damaged says so
    metadata = content.get("metadata") if isinstance(content, dict) else None
    if not isinstance(metadata, dict):
        return
    wrong = sorted(key for key, value in metadata.items() if not isinstance(value, str))
    if wrong:
        yield fail(
            f"{record.name}: the metadata value of {', '.join(wrong)[:200]} is not text",
            "cloud-api-adaptor's two scans count it differently, and disks get mixed up: something else "
            "than this driver wrote it; update or remove that, then delete the pod",
        )


def _strays(record: Record) -> Iterator[Finding]:
    for one in record.beside():
        status = one.lstat()
        if not (stat.S_ISREG(status.st_mode) and status.st_size == 0 and _SANDBOX.fullmatch(one.name)):
            yield fail(
                f"beside {record.name} stands {one.name[:80]!r}, which notes no sandbox",
                "Kata takes the first file there for the id of the pod's sandbox: find out who put it "
                f"there, and remove {one}",
            )


def _wrong_modes(record: Record) -> Iterator[Finding]:
    for path in (record.directory, record.directory / mountinfo.FILE_NAME):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # record-damaged says so
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != 0 or mode & _OTHERS_MAY_WRITE:
            yield fail(
                f"{path} belongs to {status.st_uid} and has mode {mode:04o}: others than root can change "
                "which disk the pod gets",
                f"chown root:root {path} && chmod go-w {path}",
            )


def _each(scene: Scene, examine: Callable[[Record], Iterator[Finding]], fine: str) -> Iterable[Finding]:
    """What ``examine`` finds in any record; if nothing, one finding that says ``fine``."""
    looked_at = records(scene)
    found: list[Finding] = []
    for record in looked_at:
        try:
            problems = list(examine(record))
        except FileNotFoundError:
            problems = []
        if record.directory.exists():  # else it was unpublished meanwhile
            found += problems
    return found or [ok(f"{len(looked_at)} record(s): {fine}" if looked_at else "there are no records")]
