"""Short forms of the calls that contract tests make."""

from __future__ import annotations

from providers.deadline import Deadline
from providers.interface import (
    BlockVolumeProvider,
    CapacityReporter,
    ContentSource,
    Encryption,
    Page,
    Snapshot,
    SourceKind,
    Volume,
    VolumeExpander,
    VolumeLister,
    VolumeRequest,
    VolumeSnapshotter,
)

LUKS = Encryption("luks2", "default/key/1")
UNKNOWN_HANDLES = (
    "",
    ".",
    "..",
    "../../x",
    "../../../escape/x",
    "/etc/passwd",
    "a/b",
    "x\0y",
    "no-such",
    "no such\n",
    "ü" * 40,
    "x" * 300,
    "csi-vol-../../x",
    "csi-vol-x/../y",
    "csi-vol-pvc-1\n",
    "csi-snap-snap-1\n",
)


def soon() -> Deadline:
    """More time than any call of these tests needs."""
    return Deadline.after(60)


def steps(provider: BlockVolumeProvider, count: int) -> int:
    """A size: the provider's minimum and ``count`` steps."""
    return provider.minimum_size_bytes + count * provider.size_step_bytes


def request(
    provider: BlockVolumeProvider,
    name: str = "pvc-1",
    extra_steps: int = 0,
    encryption: Encryption | None = LUKS,
    source: ContentSource | None = None,
) -> VolumeRequest:
    """A request for a volume of the provider's minimum size, and some steps more."""
    return VolumeRequest(
        name=name,
        size_bytes=steps(provider, extra_steps),
        encryption=encryption,
        fs_type="ext4",
        source=source,
        labels={"csi.storage.k8s.io/pvc/name": "data"},
    )


def create(
    provider: BlockVolumeProvider,
    name: str = "pvc-1",
    extra_steps: int = 0,
    encryption: Encryption | None = LUKS,
    source: ContentSource | None = None,
) -> Volume:
    """Create what :func:`request` describes."""
    return provider.create_volume(request(provider, name, extra_steps, encryption, source), soon())


def of_volume(volume: Volume) -> ContentSource:
    """The volume as a source."""
    return ContentSource(SourceKind.VOLUME, volume.handle)


def of_snapshot(snapshot: Snapshot) -> ContentSource:
    """The snapshot as a source."""
    return ContentSource(SourceKind.SNAPSHOT, snapshot.handle)


def snapshotter(provider: BlockVolumeProvider) -> VolumeSnapshotter:
    """The provider as one of snapshots."""
    assert isinstance(provider, VolumeSnapshotter)
    return provider


def expander(provider: BlockVolumeProvider) -> VolumeExpander:
    """The provider as one that expands."""
    assert isinstance(provider, VolumeExpander)
    return provider


def lister(provider: BlockVolumeProvider) -> VolumeLister:
    """The provider as one that lists."""
    assert isinstance(provider, VolumeLister)
    return provider


def capacity(provider: BlockVolumeProvider) -> CapacityReporter:
    """The provider as one that knows its capacity."""
    assert isinstance(provider, CapacityReporter)
    return provider


def snapshots(
    provider: BlockVolumeProvider, source: str | None = None, entries: int = 0, token: str = ""
) -> Page[Snapshot]:
    """A page of snapshots."""
    return snapshotter(provider).list_snapshots(source, entries, token, soon())


def volumes(provider: BlockVolumeProvider, entries: int = 0, token: str = "") -> Page[Volume]:
    """A page of volumes."""
    return lister(provider).list_volumes(entries, token, soon())
