"""The libvirt provider's pools: what happens behind its back, directories, disks of the older Go driver."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from types import MappingProxyType

import libvirt
import pytest

from providers.deadline import Deadline
from providers.errors import (
    AlreadyExistsError,
    ConfigurationError,
    CorruptStateError,
    DeadlineError,
    InUseError,
    InvalidParameterError,
    OutcomeUnknownError,
    QuotaExceededError,
    UnavailableError,
    VolumeNotFoundError,
)
from providers.interface import ContentSource, Encryption, SourceKind, VolumeRequest
from providers.libvirt import LibvirtProvider, copying
from providers.libvirt.class_rules import DIRECTORY_PARAMETER
from providers.libvirt.pools import Pool
from tests.contract.libvirt_backend import POOL, LibvirtBackend, running_with
from tests.fakes.libvirt_host.host import failure
from tests.lab.guest_image import CHECKOUT
from tests.lab.hypervisor import Hypervisor

MIB = 1024**2
LUKS = Encryption("luks2", "default/key/1")


def soon() -> Deadline:
    return Deadline.after(60)


@pytest.fixture
def backend(tmp_path: Path) -> LibvirtBackend:
    return LibvirtBackend(tmp_path)


@pytest.fixture
def provider(backend: LibvirtBackend) -> LibvirtProvider:
    return backend.connect()


@pytest.fixture
def go_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "go"
    directory.mkdir()
    return directory


def request(
    name: str = "pvc-1",
    mib: int = 1,
    source: ContentSource | None = None,
    parameters: Mapping[str, str] = MappingProxyType({}),
) -> VolumeRequest:
    return VolumeRequest(name, mib * MIB, LUKS, "ext4", parameters, source)


def make(path: Path, mib: int = 1, content: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(content)
        file.truncate(mib * MIB)
    return path


def connect(backend: LibvirtBackend, *directories: Path) -> LibvirtProvider:
    return LibvirtProvider(
        lambda: libvirt.open(backend.uri), POOL, tuple(map(str, directories)), patience=0.1
    )


def test_what_vanished_behind_libvirts_back_is_gone(
    backend: LibvirtBackend, provider: LibvirtProvider
) -> None:
    """Field case H1."""
    handle = provider.create_volume(request(), soon()).handle
    for file in backend.directory.iterdir():
        file.unlink()
    assert not provider.volume_exists(handle, soon())
    provider.delete_volume(handle, soon())
    assert provider.create_volume(request(mib=2), soon()).size_bytes == 2 * MIB


def test_a_stale_file_is_found_and_left_for_the_caller_to_compare(
    backend: LibvirtBackend, provider: LibvirtProvider
) -> None:
    """Field case H1: libvirt was not told of the file."""
    file = make(backend.directory / "csi-vol-pvc-1.raw", mib=3, content=b"data")
    found = provider.create_volume(request(mib=1), soon())
    assert (found.size_bytes, found.encryption) == (3 * MIB, None)
    assert file.read_bytes()[:4] == b"data"
    assert backend.objects() == ["csi-vol-pvc-1.raw"]


def test_a_missing_pool_says_nothing_of_volumes(backend: LibvirtBackend) -> None:
    provider = LibvirtProvider(lambda: libvirt.open(backend.uri), "no-such-pool")
    with pytest.raises(UnavailableError, match="no-such-pool"):
        provider.delete_volume(provider.handle_for_name("pvc-1"), soon())


def test_volumes_of_a_renamed_default_pool_are_not_taken_for_gone(
    backend: LibvirtBackend, provider: LibvirtProvider, tmp_path: Path
) -> None:
    """A handle tells its pool, whatever the default is now."""
    handle = provider.create_volume(request(), soon()).handle
    (tmp_path / "other").mkdir()
    connection = libvirt.open(backend.uri)
    connection.storagePoolDefineXML(
        f"<pool type='dir'><name>other</name><target><path>{tmp_path}/other</path></target></pool>"
    ).create()
    moved = LibvirtProvider(lambda: libvirt.open(backend.uri), "other")
    assert moved.get_volume_info(handle, soon()).name == "pvc-1"
    moved.delete_volume(handle, soon())
    assert backend.objects() == []


def test_the_go_drivers_volumes_live_on(backend: LibvirtBackend, go_directory: Path) -> None:
    """contracts 10: found by the bare name, expanded, copied, published and deleted."""
    disk = make(go_directory / "csi-vol-pvc-7.raw", content=b"old data")
    provider = connect(backend, go_directory)
    volume = provider.get_volume_info(provider.handle_for_name("pvc-7"), soon())
    assert (volume.name, volume.size_bytes, volume.encryption) == ("pvc-7", MIB, None)
    assert provider.list_volumes(0, "", soon()).items == (volume,)

    assert provider.expand_volume(volume.handle, 2 * MIB, soon()) == 2 * MIB
    assert disk.stat().st_size == 2 * MIB
    provider.set_published_node(volume.handle, "node/a", "", soon())
    assert connect(backend, go_directory).get_volume_info(volume.handle, soon()).published_node_id == "node/a"
    snapshot = provider.create_snapshot("snap-1", volume.handle, soon())
    by_bare_id = provider.list_snapshots(provider.handle_for_name("pvc-7"), 0, "", soon())
    assert by_bare_id.items == (snapshot,)
    (copy,) = go_directory.glob("csi-snap-snap-1~*.raw")
    assert copy.read_bytes()[:8] == b"old data"

    provider.delete_volume(provider.handle_for_name("pvc-7"), soon())
    provider.delete_snapshot(snapshot.handle, soon())
    assert list(go_directory.iterdir()) == []


def test_a_directory_of_a_storage_class_becomes_a_pool(backend: LibvirtBackend, go_directory: Path) -> None:
    provider = connect(backend)
    parameters = {DIRECTORY_PARAMETER: str(go_directory)}
    handle = provider.handle_for_request("pvc-1", parameters)
    with pytest.raises(VolumeNotFoundError):
        provider.get_volume_info(handle, soon())
    volume = provider.create_volume(request(parameters=parameters), soon())
    assert len(volume.handle) <= 100
    again = connect(backend)
    assert again.create_volume(request(parameters=parameters), soon()) == volume
    assert again.get_volume_info(handle, soon()) == volume
    assert again.get_volume_info(again.handle_for_name("pvc-1"), soon()) == volume
    assert again.list_volumes(0, "", soon()).items == (volume,)
    assert again.available_bytes(parameters, soon()) > 0
    with pytest.raises(AlreadyExistsError, match="pvc-1"):
        again.create_volume(request(), soon())
    again.delete_volume(volume.handle, soon())
    assert list(go_directory.iterdir()) == []


def test_a_directory_that_is_not_there_leaves_no_pool(backend: LibvirtBackend, tmp_path: Path) -> None:
    provider = connect(backend)
    with pytest.raises(UnavailableError, match="missing"):
        provider.create_volume(request(parameters={DIRECTORY_PARAMETER: str(tmp_path / "missing")}), soon())
    names = [pool.name() for pool in libvirt.open(backend.uri).listAllStoragePools()]
    assert names == [POOL]


def test_a_pool_of_somebody_elses_is_used_only_if_it_is_listed(
    backend: LibvirtBackend, go_directory: Path
) -> None:
    """Or volumes in it would not be looked for later."""
    libvirt.open(backend.uri).storagePoolDefineXML(
        f"<pool type='dir'><name>images</name><target><path>{go_directory}</path></target></pool>"
    ).create()
    parameters = {DIRECTORY_PARAMETER: str(go_directory)}
    with pytest.raises(InvalidParameterError, match="images"):
        connect(backend).create_volume(request(parameters=parameters), soon())
    volume = connect(backend, go_directory).create_volume(request(parameters=parameters), soon())
    assert volume.handle == "csi-vol-pvc-1@images"


@pytest.mark.parametrize("path", ["", "relative", "/", "//a", "/a/", "/a/../b", "/a\nb", "/" + "x" * 600])
def test_odd_directories_are_refused(provider: LibvirtProvider, path: str) -> None:
    with pytest.raises(InvalidParameterError, match=DIRECTORY_PARAMETER):
        provider.validate_parameters({DIRECTORY_PARAMETER: path})
    if path not in ("", "//a"):
        with pytest.raises(ConfigurationError, match="CONFIDENTIAL_CSI_LIBVIRT_DIRECTORIES"):
            LibvirtProvider.from_settings(
                {"LIBVIRT_URI": "test:///default", "CONFIDENTIAL_CSI_LIBVIRT_DIRECTORIES": path}
            )


def test_directories_with_awkward_names_reach_libvirt_as_they_are(
    backend: LibvirtBackend, tmp_path: Path
) -> None:
    directory = tmp_path / 'it\'s <b> & "ü"'
    directory.mkdir()
    volume = connect(backend).create_volume(request(parameters={DIRECTORY_PARAMETER: str(directory)}), soon())
    assert volume.handle.isascii()
    assert len(list(directory.glob("*.raw"))) == 1


def test_more_than_the_pool_holds_is_a_matter_of_quota(provider: LibvirtProvider) -> None:
    handle = provider.create_volume(request(), soon()).handle
    for call in (
        lambda: provider.create_volume(request("big", mib=60 * MIB), soon()),
        lambda: provider.expand_volume(handle, 60 * MIB * MIB, soon()),
    ):
        with pytest.raises(QuotaExceededError):
            call()


def test_a_disk_in_use_is_copied_by_its_machine(backend: LibvirtBackend, provider: LibvirtProvider) -> None:
    """There are no reflinks here, and to read the file while a guest writes would give no point in time."""
    volume = provider.create_volume(request(mib=3), soon())
    with backend.disk(volume.handle).open("r+b") as file:
        file.write(b"in use" * 200_000)
    with running_with(backend.uri, backend.disk(volume.handle)) as domain:
        snapshot = provider.create_snapshot("snap-1", volume.handle, soon())
        source = ContentSource(SourceKind.VOLUME, volume.handle)
        clone = provider.create_volume(request("clone", mib=5, source=source), soon())
        assert provider.get_volume_info(volume.handle, soon()).attached_to == domain.name()
        assert provider.list_volumes(0, "", soon()).items[1].attached_to == domain.name()
    content = backend.disk(volume.handle).read_bytes()
    assert backend.disk(snapshot.handle).read_bytes() == content
    assert backend.disk(clone.handle).read_bytes() == content + bytes(2 * MIB)
    assert provider.get_volume_info(volume.handle, soon()).attached_to == ""


def refusing(code: int) -> Callable[..., None]:
    def refuse(*_arguments: object) -> None:
        raise failure(code)

    return refuse


def test_a_copy_that_its_machine_can_not_make_leaves_nothing(
    backend: LibvirtBackend, provider: LibvirtProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = provider.create_volume(request(), soon())
    held = backend.objects()
    with running_with(backend.uri, backend.disk(volume.handle)) as domain:
        for code, error in (
            (libvirt.VIR_ERR_OPERATION_UNSUPPORTED, InUseError),
            (libvirt.VIR_ERR_OPERATION_INVALID, UnavailableError),
        ):
            monkeypatch.setattr(libvirt.virDomain, "backupBegin", refusing(code))
            with pytest.raises(error):
                provider.create_snapshot("snap-1", volume.handle, soon())
            assert backend.objects() == held
        monkeypatch.setattr(Pool, "available_bytes", lambda _pool: MIB - 1)
        with pytest.raises(QuotaExceededError, match="in use"):
            provider.create_snapshot("snap-1", volume.handle, soon())
        assert domain.isActive()
    assert backend.objects() == held


def test_a_disk_in_use_grows_for_its_machine(backend: LibvirtBackend, provider: LibvirtProvider) -> None:
    volume = provider.create_volume(request(), soon())
    with running_with(backend.uri, backend.disk(volume.handle)) as domain:
        assert provider.expand_volume(volume.handle, 4 * MIB, soon()) == 4 * MIB
        assert domain.blockInfo("vdb")[0] == 4 * MIB


@pytest.mark.parametrize("streamed_bytes", [copying._STREAMED_BYTES, 0], ids=["streamed", "by libvirt"])
def test_copies_hold_what_the_source_held(
    backend: LibvirtBackend,
    provider: LibvirtProvider,
    monkeypatch: pytest.MonkeyPatch,
    streamed_bytes: int,
) -> None:
    monkeypatch.setattr(copying, "_STREAMED_BYTES", streamed_bytes)
    volume = provider.create_volume(request(mib=3), soon())
    content = bytearray(3 * MIB)
    for offset in (0, 65536 - 3, MIB + 12345, 3 * MIB - 10):
        content[offset : offset + 10] = b"0123456789"
    with backend.disk(volume.handle).open("r+b") as file:
        file.write(content)
    source = ContentSource(SourceKind.VOLUME, volume.handle)
    clone = provider.create_volume(request("clone", mib=5, source=source), soon())
    assert backend.disk(clone.handle).read_bytes() == bytes(content) + bytes(2 * MIB)


def test_content_that_looks_like_another_format_is_not_followed(
    backend: LibvirtBackend, provider: LibvirtProvider
) -> None:
    """A guest may write anything; qemu-img would open the files that a forged qcow2 header names."""
    volume = provider.create_volume(request(), soon())
    header = b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(16) + (1 << 40).to_bytes(8, "big") + bytes(72)
    with backend.disk(volume.handle).open("r+b") as file:
        file.write(header)
    held = backend.objects()
    libvirt.open(backend.uri).storagePoolLookupByName(POOL).refresh(0)
    assert provider.get_volume_info(volume.handle, soon()).size_bytes == MIB
    with pytest.raises(CorruptStateError, match="another format"):
        provider.create_snapshot("snap-1", volume.handle, soon())
    assert backend.objects() == held


def test_damaged_tags_are_reported_and_hide_no_others(
    backend: LibvirtBackend, provider: LibvirtProvider
) -> None:
    damaged = provider.create_volume(request("a"), soon())
    zeroed = provider.create_volume(request("b"), soon())
    good = provider.create_volume(request("c"), soon())
    (backend.directory / "csi-vol-a~tags").write_bytes(b"x" * 200)
    (backend.directory / "csi-vol-b~tags").write_bytes(bytes(200))
    held = sorted(path.name for path in backend.directory.iterdir())
    for handle in (damaged.handle, zeroed.handle):
        with pytest.raises(CorruptStateError):
            provider.get_volume_info(handle, soon())
        with pytest.raises(CorruptStateError):
            provider.delete_volume(handle, soon())
    assert backend.connect().list_volumes(0, "", soon()).items == (good,)
    assert sorted(path.name for path in backend.directory.iterdir()) == held


def test_notes_change_only_from_what_the_caller_saw(
    backend: LibvirtBackend, provider: LibvirtProvider
) -> None:
    handle = provider.create_volume(request(), soon()).handle

    def noted() -> str:
        return backend.connect().get_volume_info(handle, soon()).published_node_id

    provider.set_published_node(handle, "node/a", "", soon())
    provider.set_published_node(handle, "node/a", "", soon())  # a replay
    assert noted() == "node/a"
    with pytest.raises(OutcomeUnknownError):
        provider.set_published_node(handle, "node/c", "node/b", soon())
    assert noted() == "node/a"
    provider.set_published_node(handle, "node/b", "node/a", soon())
    assert noted() == "node/b"
    assert backend.connect().create_volume(request(), soon()).published_node_id == "node/b"
    provider.set_published_node(handle, "", "node/b", soon())
    assert noted() == ""
    provider.set_published_node(handle, "node/d", "", soon())
    provider.delete_volume(handle, soon())
    assert backend.objects() == []
    with pytest.raises(VolumeNotFoundError):
        provider.set_published_node(handle, "node/a", "", soon())


def test_conditions_tell_of_a_disk_that_was_cut(backend: LibvirtBackend, provider: LibvirtProvider) -> None:
    volumes = [provider.create_volume(request(name, mib=2), soon()) for name in ("good", "cut", "gone")]
    with backend.disk(volumes[1].handle).open("r+b") as file:
        file.truncate(MIB)
    provider.delete_volume(volumes[2].handle, soon())
    with running_with(backend.uri, backend.disk(volumes[0].handle)):
        found = provider.volume_conditions(volumes, soon())
    assert {handle: condition.abnormal for handle, condition in found.items()} == {
        volumes[0].handle: False,
        volumes[1].handle: True,
    }
    assert "fewer" in found[volumes[1].handle].message


def test_a_lost_connection_is_opened_again(backend: LibvirtBackend) -> None:
    opened: list[libvirt.virConnect] = []

    def open_one() -> libvirt.virConnect:
        opened.append(libvirt.open(backend.uri))
        return opened[-1]

    provider = LibvirtProvider(open_one, POOL)
    handle = provider.create_volume(request(), soon()).handle
    opened[-1].close()
    assert provider.volume_exists(handle, soon())
    assert len(opened) == 2


def test_an_unreachable_host_is_unavailable(tmp_path: Path) -> None:
    provider = LibvirtProvider.from_settings({"LIBVIRT_URI": f"qemu+unix:///system?socket={tmp_path}/no"})
    with pytest.raises(UnavailableError, match="LIBVIRT_URI"):
        provider.volume_exists(provider.handle_for_name("pvc-1"), soon())
    with pytest.raises(ConfigurationError, match="LIBVIRT_URI"):
        LibvirtProvider.from_settings({})


def test_a_host_that_hangs_costs_no_more_than_the_deadline(backend: LibvirtBackend) -> None:
    """Field case B3."""
    hangs = Event()

    def open_slowly() -> libvirt.virConnect:
        hangs.wait(60)
        return libvirt.open(backend.uri)

    provider = LibvirtProvider(open_slowly, POOL)
    began = time.monotonic()
    with pytest.raises(DeadlineError):
        provider.create_volume(request(), Deadline.after(0.3))
    with pytest.raises(DeadlineError):
        provider.create_volume(
            request(), Deadline.after(60, cancelled=lambda: time.monotonic() > began + 0.5)
        )
    assert time.monotonic() - began < 40
    hangs.set()
    assert provider.create_volume(request(), soon()).name == "pvc-1"


def test_a_host_that_stops_answering_ends_the_calls_that_wait_for_it() -> None:
    """Field case B3: by keep-alive, several at a time, and without harm to the process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.providers.hung_libvirt"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=CHECKOUT,
    )
    lines = ["DeadlineError UnavailableError UnavailableError", "in time", "[]"]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr


def test_the_test_driver_can_list_but_hold_no_tags() -> None:
    """``test:///default`` has pools in memory only: calls end with an error of ours, not of libvirt's."""
    provider = LibvirtProvider.from_settings(
        {"LIBVIRT_URI": "test:///default", "LIBVIRT_POOL": "default-pool"}
    )
    assert provider.list_volumes(0, "", soon()).items == ()
    assert not provider.volume_exists(provider.handle_for_name("pvc-1"), soon())
    with pytest.raises(UnavailableError):
        provider.create_volume(request(), soon())
    assert provider.list_volumes(0, "", soon()).items == ()


@pytest.fixture(scope="module")
def xfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system with reflinks."""
    folder = tmp_path_factory.mktemp("xfs")
    image = make(folder / "xfs.img", mib=320)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True)
    (folder / "mounted").mkdir()
    subprocess.run(["mount", "-o", "loop", image, folder / "mounted"], check=True)
    yield folder / "mounted"
    subprocess.run(["umount", folder / "mounted"], check=True)


def test_with_reflinks_a_disk_in_use_is_copied_at_once(xfs: Path) -> None:
    with Hypervisor() as hypervisor:  # it sees what was mounted before it started
        hypervisor.make_pool("xfs", xfs)
        provider = LibvirtProvider(lambda: libvirt.open(hypervisor.uri), "xfs")
        volume = provider.create_volume(request(mib=64), soon())
        (disk,) = xfs.glob("csi-vol-pvc-1~*.raw")
        with disk.open("r+b") as file:
            file.write(b"at this moment" * 100_000)
        with running_with(hypervisor.uri, disk):
            snapshot = provider.create_snapshot("snap-1", volume.handle, soon())
            source = ContentSource(SourceKind.SNAPSHOT, snapshot.handle)
            restored = provider.create_volume(request("copy", mib=80, source=source), soon())
        assert restored.size_bytes == 80 * MIB
        with disk.open("r+b") as file:
            file.write(b"later")
        (copy,) = xfs.glob("csi-vol-copy~*.raw")
        assert copy.read_bytes()[:14] == b"at this moment"
        assert copy.stat().st_size == 80 * MIB
