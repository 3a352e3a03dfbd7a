"""Opening and closing volumes: from a disk that the host attached to a directory that a container may use.

Every step looks at what is there before it acts, so a second container of the pod, a restarted agent, or an
agent that was killed half-way finds its way from any point. What exists already is used only after it was
verified, in the same way as what was made just now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as Figures
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent import crypt_mapping
from agent.annotation import CloudVolume
from agent.block_device import BlockDevice
from agent.cdh import DataHub
from agent.clock import Clock
from agent.commands import Runner
from agent.device_mapper import DeviceMapper, Mapping
from agent.devices import DeviceFinder, Disk
from agent.disk_format import RecordKey, State
from agent.errors import AgentError, Refused, Unavailable
from agent.filesystem import Filesystems, MountOptions, apply_fs_group, mounted_at
from agent.header_guard import GenuineHeader, update_record
from agent.keys import ReleasedKey, fetch_key, key_uri
from agent.measurement import Measurements, VolumeEvent
from agent.phases import Phase, Phases, forget, last_mount
from agent.plain import PlainMappings, needs_filesystem
from agent.policy import Encryption, Measurement, Policy, VolumeRules, rules_for
from agent.rotation import KeyedHeader, KeyedHeaders
from agent.shield import Shield, Shields, key_mark
from agent.unlock_turn import unlock_turn
from agent.volume_lock import STATE_ROOT, volume_lock

MOUNT_ROOT = Path("/run/cloud-volumes")
_MAPPER_PREFIX = "caa-"


class OpenDevice(Protocol):
    """Opens a disk for raw access (``agent.block_device.DirectDevice``)."""

    def __call__(
        self, path: Path, *, writable: bool, exclusive: bool, number: str
    ) -> AbstractContextManager[BlockDevice]: ...


@dataclass(frozen=True)
class MountedVolume:
    """A volume that is ready: bind ``source`` over ``mount_point`` in the container."""

    name: str
    mount_point: str
    source: str


@dataclass(frozen=True)
class VolumeStatus:
    """What there is of a volume in this VM."""

    name: str
    mounted: bool
    open: bool
    shielded: bool
    mount_seconds: Figures[str, float] = field(default_factory=dict)
    """How long the phases of its last mount took (:class:`agent.phases.Phase`)."""


@dataclass(frozen=True)
class _OpenVolume:
    """A mapping that was verified, and how many bytes of data it holds."""

    mapping: Mapping
    data_bytes: int
    luks_uuid: str | None
    """None without encryption."""


@dataclass(frozen=True)
class Failure:
    """Why a volume could not be mounted or unmounted."""

    name: str
    error: AgentError

    def __str__(self) -> str:
        notes = getattr(self.error, "__notes__", ())
        return "; ".join([f"{self.error} ({self.name})", *notes])


class VolumesFailed(Exception):
    """Some volumes could not be mounted or unmounted; ``failures`` are in the order of the volumes."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__("\n".join(map(str, failures)))
        self.failures = tuple(failures)


class Volumes:
    """The volumes of this VM. Several agents at once are fine: a lock file serializes each volume."""

    def __init__(
        self,
        *,
        hub: DataHub,
        runner: Runner,
        clock: Clock,
        finder: DeviceFinder,
        open_device: OpenDevice,
    ) -> None:
        self._hub = hub
        self._runner = runner
        self._clock = clock
        self._finder = finder
        self._open_device = open_device
        self._mapper = DeviceMapper(runner)
        self._shields = Shields(self._mapper)
        self._plain = PlainMappings(self._mapper)
        self._filesystems = Filesystems(runner)
        self._headers = KeyedHeaders(hub, runner, clock)
        self._measurements = Measurements()

    def mount(self, volumes: Sequence[CloudVolume], policy: Policy) -> list[MountedVolume]:
        """Mount all of ``volumes`` as ``policy`` says, in parallel; what is mounted already is verified.

        Raises:
            AgentError: the policy refuses what the annotation says; nothing was done.
            VolumesFailed: at least one failed. Those that this call mounted are unmounted again, the last
                one first.
        """
        rules = rules_for(policy, volumes)
        demand = policy.agent.measurement
        outcomes = _in_parallel(lambda volume: self._mount_one(volume, rules[volume.name], demand), volumes)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if failures:
            mounted_now = [
                one.name for one, outcome in zip(volumes, outcomes, strict=True) if outcome is True
            ]
            raise VolumesFailed([*failures, *self._close_all(mounted_now)])
        return [MountedVolume(one.name, one.mount_point, one.mount_directory) for one in volumes]

    def unmount(self, names: Sequence[str]) -> None:
        """Unmount and close the volumes of these names (``vol-0``), the last one first.

        Raises:
            VolumesFailed: at least one is in use, and stays open as it is.
        """
        failures = self._close_all(names)
        if failures:
            raise VolumesFailed(failures)

    def status(self) -> list[VolumeStatus]:
        """The volumes of which anything exists in this VM, by name."""
        open_names = {mapping.name for mapping in self._mapper.mappings()}
        shielded = self._shields.names()
        names = {
            name.removeprefix(_MAPPER_PREFIX)
            for name in open_names | shielded
            if name.startswith(f"{_MAPPER_PREFIX}vol-") and not name.endswith("-shield")
        }
        return [
            VolumeStatus(
                name=name,
                mounted=mounted_at(MOUNT_ROOT / name) is not None,
                open=_MAPPER_PREFIX + name in open_names,
                shielded=_MAPPER_PREFIX + name in shielded,
                mount_seconds=last_mount(name),
            )
            for name in sorted(names, key=lambda one: (len(one), one))
        ]

    def _mount_one(self, volume: CloudVolume, rules: VolumeRules, demand: Measurement) -> bool:
        """Mount one volume. Returns whether it was mounted just now (False: it was before)."""
        phases = Phases(self._clock)
        with volume_lock(volume.name, self._clock):
            with phases.of(Phase.DETECT):
                disk = self._finder.find(volume)
            rules.require_size(disk.size)
            mounted = self._find_mounted(volume, rules, disk)
            if mounted is not None:
                self._finish(volume, rules, mounted, phases)
                self._measurements.opened(_event(volume, rules, mounted), demand)
                return False
            self._clear_leftovers(volume, rules, disk)
            try:
                if rules.encryption is Encryption.NONE:
                    opened = self._map_and_mount(volume, rules, disk, phases)
                else:
                    opened = self._open_and_mount(volume, rules, disk, phases)
                self._measurements.opened(_event(volume, rules, opened), demand)
            except BaseException as error:
                self._roll_back(volume, error)
                raise
            phases.keep(volume.name)
            return True

    def _find_mounted(self, volume: CloudVolume, rules: VolumeRules, disk: Disk) -> _OpenVolume | None:
        """The volume, if it is mounted, by way of a mapping that stands the same checks as a new one."""
        mount = mounted_at(Path(volume.mount_directory))
        if mount is None:
            return None
        mapping = self._mapper.find(volume.mapper_name)
        if mapping is None or mount.number != mapping.number:
            raise Refused(
                "foreign-mount",
                f"something else is mounted at {volume.mount_directory}; unmount it, or use a fresh VM",
            )
        if mount.read_only is not rules.read_only:
            raise Refused(
                "mount-differs",
                f"the volume is mounted {'read-only' if mount.read_only else 'for writing'} already, and the "
                "policy says otherwise now; start the pod again",
            )
        return self._verify(volume, rules, disk, mapping, may_be_short=True)

    def _clear_leftovers(self, volume: CloudVolume, rules: VolumeRules, disk: Disk) -> None:
        """Take down what an agent that was killed left open; refuse what belongs to another disk."""
        shield = self._shields.find(volume.mapper_name)
        mapping = self._mapper.find(volume.mapper_name)
        if mapping is not None:
            self._verify(volume, rules, disk, mapping, may_be_short=True)
        elif shield is not None and shield.disk_number != disk.number:
            raise _foreign(shield.mapping.name, disk)
        self._close(volume.name)

    def _map_and_mount(
        self, volume: CloudVolume, rules: VolumeRules, disk: Disk, phases: Phases
    ) -> _OpenVolume:
        """Mount a volume without encryption."""
        with phases.of(Phase.CHECK), self._raw(disk, writable=False, exclusive=True) as device:
            is_new = needs_filesystem(device, rules, self._clock)
        with phases.of(Phase.OPEN):
            mapping = self._plain.build(volume.mapper_name, disk)
        with phases.of(Phase.MOUNT):
            if is_new:
                self._filesystems.make(mapping.path)
            elif not rules.read_only:
                self._filesystems.check(mapping.path)
            self._filesystems.mount(mapping.path, Path(volume.mount_directory), _mount_options(rules))
        opened = _OpenVolume(mapping, disk.size, None)
        self._finish(volume, rules, opened, phases)
        return opened

    def _open_and_mount(
        self, volume: CloudVolume, rules: VolumeRules, disk: Disk, phases: Phases
    ) -> _OpenVolume:
        with phases.of(Phase.KEY):
            current = ReleasedKey(volume.key_id, fetch_key(self._hub, volume.key_id))
        with (
            phases.of(Phase.CHECK),
            self._raw(disk, writable=not rules.read_only, exclusive=True) as device,
        ):
            keyed = self._headers.obtain(device, current, rules)
        header, key = keyed.header, keyed.key.value
        with phases.of(Phase.OPEN):
            opened = self._open(volume, rules, disk, keyed)
            if rules.discard:
                with unlock_turn(header.audited):
                    self._mapper.allow_discards(opened.mapping.name, key)
                opened = self._verify(volume, rules, disk, opened.mapping)
        with phases.of(Phase.MOUNT):
            if header.record.state is not State.READY:
                self._filesystems.make(opened.mapping.path)
                header = self._record(disk, key, header, state=State.READY)
            elif not rules.read_only:
                self._filesystems.check(opened.mapping.path)
            self._filesystems.mount(opened.mapping.path, Path(volume.mount_directory), _mount_options(rules))
        self._finish(volume, rules, opened, phases)
        if disk.size > header.record.minimum_size and not rules.read_only:
            self._record(disk, key, header, minimum_size=disk.size)
        return opened

    def _finish(self, volume: CloudVolume, rules: VolumeRules, opened: _OpenVolume, phases: Phases) -> None:
        """What a mounted volume still needs; repeated for one that was mounted before, in case of a kill."""
        if rules.read_only:
            return
        with phases.of(Phase.GROW):
            self._filesystems.grow(opened.mapping.path, opened.data_bytes)
        group = volume.fs_group if rules.fs_group is None else rules.fs_group
        if group is not None:
            apply_fs_group(Path(volume.mount_directory), group)

    def _open(self, volume: CloudVolume, rules: VolumeRules, disk: Disk, keyed: KeyedHeader) -> _OpenVolume:
        """Open the volume through the data hub, from the checked header, and verify what came of it."""
        # Marked by the key that the containers name, also where the previous one opens it.
        shield = self._shields.build(volume.mapper_name, disk, keyed.header, volume.key_id)
        link = STATE_ROOT / f"{volume.name}.link"
        link.unlink(missing_ok=True)
        try:
            with unlock_turn(keyed.header.audited):
                self._hub.open_encrypted(
                    device_path=str(shield.mapping.path),
                    key_uri=key_uri(keyed.key.key_id),
                    mapper_name=volume.mapper_name,
                    link_path=str(link),
                )
        finally:
            link.unlink(missing_ok=True)
        mapping = self._mapper.find(volume.mapper_name)
        if mapping is None:
            raise Unavailable(
                "mapping-missing",
                f"the data hub reported success, but there is no mapping {volume.mapper_name}",
            )
        return self._compare(volume, rules, shield, mapping)

    def _verify(
        self,
        volume: CloudVolume,
        rules: VolumeRules,
        disk: Disk,
        mapping: Mapping,
        *,
        may_be_short: bool = False,
    ) -> _OpenVolume:
        """Require that ``mapping`` is the volume's header, by way of its shield, over this very disk.

        ``may_be_short``: a growth that was cut short may have left it smaller than its shield.
        """
        if rules.encryption is Encryption.NONE:
            size = self._plain.size_over(mapping, disk)
            if size is None:
                raise _foreign(mapping.name, disk)
            return _OpenVolume(mapping, size, None)
        shield = self._shields.find(volume.mapper_name)
        if shield is None or shield.disk_number != disk.number:
            raise _foreign(mapping.name, disk)
        return self._compare(volume, rules, shield, mapping, may_be_short=may_be_short)

    def _compare(
        self,
        volume: CloudVolume,
        rules: VolumeRules,
        shield: Shield,
        mapping: Mapping,
        *,
        may_be_short: bool = False,
    ) -> _OpenVolume:
        """Require that ``mapping`` does what the header in ``shield``, and ``rules``, say."""
        if shield.key_mark != key_mark(volume.key_id):
            raise Refused(
                "key-differs",
                f"the volume is open with another key than {volume.key_id}; the pod's containers must agree",
            )
        rules.require_uuid(shield.header.uuid)
        table = self._mapper.table(mapping.name)
        size = crypt_mapping.backing_bytes(table, shield.header, shield.size) if may_be_short else shield.size
        crypt_mapping.require_same(
            mapping, table, shield.header, shield.mapping.number, size, may_discard=rules.discard
        )
        return _OpenVolume(mapping, size - shield.header.data_offset_bytes, shield.header.uuid)

    def _record(
        self,
        disk: Disk,
        key: bytes,
        header: GenuineHeader,
        *,
        state: State | None = None,
        minimum_size: int | None = None,
    ) -> GenuineHeader:
        # Not exclusive: the shield holds the disk.
        with self._raw(disk, writable=True, exclusive=False) as device:
            return update_record(device, RecordKey(key), header, state=state, minimum_size=minimum_size)

    def _raw(self, disk: Disk, *, writable: bool, exclusive: bool) -> AbstractContextManager[BlockDevice]:
        """The disk that was found, or none: its name may stand for another one by now."""
        return self._open_device(disk.path, writable=writable, exclusive=exclusive, number=disk.number)

    def _close(self, name: str) -> None:
        """Unmount, close the mapping, take down the shield: each only after the one before it is gone."""
        directory = MOUNT_ROOT / name
        mapper_name = _MAPPER_PREFIX + name
        self._mapper.remove_unfinished(mapper_name)
        mapping = self._mapper.find(mapper_name)
        shielded = self._shields.find(mapper_name) is not None
        if mapping is not None and not shielded and not self._plain.is_plain(mapping):
            raise Refused(
                "foreign-mapping", f"the mapping {mapper_name} was not opened by this agent; it stays open"
            )
        mount = mounted_at(directory)
        if mount is not None:
            if mapping is None or mount.number != mapping.number:
                raise Refused("foreign-mount", f"what is mounted at {directory} is not the volume {name}")
            self._filesystems.unmount(directory)
        if mapping is not None:
            self._mapper.remove(mapper_name)
        self._shields.remove(mapper_name)
        self._measurements.closed(name)
        forget(name)

    def _close_all(self, names: Sequence[str]) -> list[Failure]:
        failures = []
        for name in reversed(names):
            try:
                with volume_lock(name, self._clock):
                    self._close(name)
            except AgentError as error:
                failures.append(Failure(name, error))
        return failures

    def _roll_back(self, volume: CloudVolume, cause: BaseException) -> None:
        try:
            self._close(volume.name)
        except AgentError as error:
            cause.add_note(f"{volume.name} could not be closed after that: {error}")


def _event(volume: CloudVolume, rules: VolumeRules, opened: _OpenVolume) -> VolumeEvent:
    return VolumeEvent(
        volume=volume.name,
        mount_point=volume.mount_point,
        encryption=rules.encryption,
        key_id=None if rules.encryption is Encryption.NONE else volume.key_id,
        luks_uuid=opened.luks_uuid,
        read_only=rules.read_only,
    )


def _mount_options(rules: VolumeRules) -> MountOptions:
    return MountOptions(read_only=rules.read_only, discard=rules.discard)


def _foreign(name: str, disk: Disk) -> Refused:
    return Refused(
        "foreign-mapping",
        f"the mapping {name} exists, but this agent did not make it over {disk.path}; "
        "close it, or use a fresh VM",
    )


def _in_parallel(
    action: Callable[[CloudVolume], bool], volumes: Sequence[CloudVolume]
) -> list[bool | Failure]:
    """Run ``action`` on all volumes at once; failing is an outcome, too."""

    def outcome(volume: CloudVolume) -> bool | Failure:
        try:
            return action(volume)
        except AgentError as error:
            return Failure(volume.name, error)
        except OSError as error:
            return Failure(volume.name, Unavailable("system-error", str(error)))

    if not volumes:
        return []
    with ThreadPoolExecutor(max_workers=len(volumes)) as pool:
        return list(pool.map(outcome, volumes))
