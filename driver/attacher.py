"""Attaches published volumes to the PodVMs that want them, where cloud-api-adaptor does not (libvirt).

The state is all outside: Kata's direct-volume root says which disk a pod wants, and Kata notes beside it the
sandbox that mounts it, before the container is created; the name of a PodVM tells its sandbox; and the
hypervisor knows what is attached. Each round compares the two and does what is missing, so it does not
matter when this process was started or killed. The agent in the guest waits for the disk.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from driver import mountinfo
from driver.direct_volumes import DirectVolumes
from driver.errors import DriverError
from providers.deadline import Deadline
from providers.errors import ProviderError
from providers.interface import VolumeAttacher
from providers.serial import disk_serial

_CALL_SECONDS = 30.0
#: A guest that does not let go of a disk must not keep others waiting for theirs.
_DETACH_SECONDS = 2.0

#: cloud-api-adaptor names PodVMs so (src/cloud-providers/util/instance.go, GenerateInstanceName).
_PODVM_PREFIX = "podvm-"
_SANDBOX_CHARACTERS = 8

_log = logging.getLogger(__name__)


@dataclass
class _Wanted:
    """What the direct-volume root asks for."""

    disks: dict[str, set[str]] = field(default_factory=dict)
    """By machine: disk ids."""
    is_complete: bool = True
    """False if a record could not be read: then nothing counts as no longer wanted."""


class Attacher:
    """Keeps the PodVMs of one node supplied with their disks.

    Args:
        provider_name: records of volumes of other providers are left alone.
        owner: this node's name; other nodes' attachments are left alone.
    """

    def __init__(
        self, provider: VolumeAttacher, provider_name: str, direct_volumes: DirectVolumes, owner: str
    ) -> None:
        self._provider = provider
        self._provider_name = provider_name
        self._direct_volumes = direct_volumes
        self._owner = owner
        self._reported: dict[str, str] = {}

    def run(self, stop: threading.Event, interval: float) -> None:
        """A round each ``interval`` seconds until ``stop`` is set."""
        while not stop.is_set():
            self.round()
            stop.wait(interval)

    def round(self) -> None:
        """Attach and detach what is due; what fails is logged, once, and tried again in the next round."""
        failures: dict[str, str] = {}
        try:
            self._direct_volumes.require_ready(for_writing=False)
            attached = self._provider.attached_serials(self._owner, Deadline.after(_CALL_SECONDS))
            wanted = self._wanted(attached, failures)
        except (ProviderError, DriverError) as error:
            failures["looking at PodVMs and records"] = str(error)
        else:
            self._attach(wanted, attached, failures)
            if wanted.is_complete:
                self._detach(wanted, attached, failures)
        for what, why in failures.items():
            if self._reported.get(what) != why:
                _log.warning("%s: %s", what, why)
        self._reported = failures

    def _wanted(self, machines: Mapping[str, object], failures: dict[str, str]) -> _Wanted:
        wanted = _Wanted()
        for target_path in self._direct_volumes.target_paths():
            try:
                info = self._direct_volumes.read(target_path)
                sandboxes = self._direct_volumes.sandbox_ids(target_path)
            except mountinfo.Damaged as error:
                failures[f"record of {target_path}"] = str(error)
                wanted.is_complete = False
                continue
            if info is None or not self._is_ours(info):
                continue
            for machine in machines:
                if any(_is_podvm_of(machine, sandbox) for sandbox in sandboxes):
                    wanted.disks.setdefault(machine, set()).add(info.device)
        return wanted

    def _is_ours(self, info: mountinfo.MountInfo) -> bool:
        return info.metadata.get(mountinfo.CLOUD_PROVIDER, self._provider_name) == self._provider_name

    def _attach(
        self, wanted: _Wanted, attached: Mapping[str, frozenset[str]], failures: dict[str, str]
    ) -> None:
        for machine, disk_ids in sorted(wanted.disks.items()):
            for disk_id in sorted(disk_ids):
                if disk_serial(disk_id) in attached[machine]:
                    continue
                try:
                    self._provider.attach_disk(disk_id, machine, self._owner, Deadline.after(_CALL_SECONDS))
                except ProviderError as error:
                    failures[f"attaching {disk_id} to {machine}"] = str(error)
                else:
                    _log.info("attached %s to %s as %s", disk_id, machine, disk_serial(disk_id))

    def _detach(
        self, wanted: _Wanted, attached: Mapping[str, frozenset[str]], failures: dict[str, str]
    ) -> None:
        for machine, serials in sorted(attached.items()):
            kept = {disk_serial(disk_id) for disk_id in wanted.disks.get(machine, ())}
            for serial in sorted(serials - kept):
                try:
                    self._provider.detach_disk(serial, machine, self._owner, Deadline.after(_DETACH_SECONDS))
                except ProviderError as error:
                    failures[f"detaching {serial} from {machine}"] = str(error)
                else:
                    _log.info("detached %s from %s: it is no longer published", serial, machine)


def _is_podvm_of(machine: str, sandbox_id: str) -> bool:
    """Whether cloud-api-adaptor gave that name to the PodVM of that sandbox."""
    shortened = re.sub(r"[^a-z0-9-]", "-", sandbox_id.lower())[:_SANDBOX_CHARACTERS]
    return machine.startswith(_PODVM_PREFIX) and machine.endswith(f"-{shortened}")
