"""The lab itself: what other guest tests take for granted."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.cdh_control import Cdh
from tests.lab.cdh_storage import DIALECTS, Dialect
from tests.lab.guest_image import CHECKOUT
from tests.lab.kbs import Kbs
from tests.lab.podvm import GuestFailed, GuestTimeout, PodVm

MakeDisk = Callable[..., Path]

KEY_PATH = "default/key/vol1"
KEY = bytes(range(64))
MOUNT_POINT = "/run/volume"


def test_runs_programs_with_their_input_and_output(vm: PodVm) -> None:
    every_byte = bytes(range(256)) * 1000
    done = vm.run(["sh", "-c", "cat; echo $NAME >&2; exit 7"], stdin=every_byte, environment={"NAME": "x"})
    assert (done.returncode, done.stdout, done.stderr) == (7, every_byte, b"x\n")


def test_a_program_that_does_not_end_is_killed(vm: PodVm) -> None:
    with pytest.raises(GuestTimeout, match="sleep 73 did not end"):
        vm.run(["sleep", "73"], timeout=0.3)
    # The answer does not wait for its end.
    vm.check(["sh", "-c", "while pgrep -f 'sleep 7[3]'; do sleep 0.05; done"])


def test_what_stays_in_the_background_does_not_hold_an_answer_back(vm: PodVm) -> None:
    assert vm.check(["sh", "-c", "sleep 71 & echo started"], timeout=60) == b"started\n"
    assert b"sleep 71" in vm.check(["ps", "ax"])
    vm.check(["pkill", "-f", "sleep 71"])


def test_jobs_run_side_by_side(vm: PodVm) -> None:
    vm.check(["mkfifo", "/run/fifo"])
    with ThreadPoolExecutor() as threads:
        reader = threads.submit(vm.check, ["cat", "/run/fifo"])
        vm.check(["sh", "-c", "echo met >/run/fifo"])
        assert reader.result() == b"met\n"


def test_calls_functions_of_the_checkout(vm: PodVm) -> None:
    assert vm.call("tests.lab.caa:serial_of", disk_id="vol-0") == hashlib.sha256(b"vol-0").hexdigest()[:20]


def test_an_exception_in_the_guest_comes_back_with_its_traceback(vm: PodVm) -> None:
    with pytest.raises(GuestFailed, match=r"(?s)Traceback.*FileNotFoundError.*/nowhere"):
        vm.call("os:listdir", path="/nowhere")
    with pytest.raises(GuestFailed, match="No module named 'nowhere'"):
        vm.call("nowhere:function")
    with pytest.raises(GuestFailed, match="FileNotFoundError"):
        vm.run(["/nowhere"])


def test_the_guest_writes_nothing_to_the_host(vm: PodVm) -> None:
    mark = CHECKOUT / f"written-in-guest-{os.getpid()}"
    vm.check(["touch", str(mark)])
    assert not mark.exists()
    # Nor underneath the overlay.
    assert vm.run(["sh", "-c", "mkdir /below && mount -t virtiofs host-root /below"]).returncode == 0
    assert vm.run(["touch", f"/below{mark}"]).returncode != 0
    assert not mark.exists()
    vm.check(["umount", "/below"])


def test_the_guest_does_not_see_the_temporary_files_of_the_host(vm: PodVm, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(KEY)
    assert not vm.call("os.path:exists", path=str(tmp_path))


def test_a_disk_is_found_by_its_serial_follows_a_resize_and_goes(vm: PodVm, make_disk: MakeDisk) -> None:
    before = vm.call("tests.lab.guest_tools:disks")
    vm.attach(make_disk("one"), "a" * 20)
    vm.call("tests.lab.guest_tools:find_disk", serial="a" * 20)
    vm.attach(make_disk("two", mib=8), "second")
    device = vm.call("tests.lab.guest_tools:find_disk", serial="second")
    assert vm.check(["blockdev", "--getsize64", device]) == b"%d\n" % (8 * 2**20)
    vm.resize_disk("second", 12 * 2**20)
    assert vm.call("tests.lab.guest_tools:wait_for_size", device=device, size=12 * 2**20)
    vm.detach("second")
    vm.detach("a" * 20)
    assert vm.call("tests.lab.guest_tools:disks") == before


def test_a_serial_that_would_be_cut_is_refused(vm: PodVm, make_disk: MakeDisk) -> None:
    with pytest.raises(ValueError, match="1 to 20 bytes"):
        vm.attach(make_disk("long"), "a" * 21)


def test_dm_crypt_encrypts_and_what_was_flushed_outlives_the_guest(
    boot: Callable[[], PodVm], make_disk: MakeDisk
) -> None:
    image = make_disk("data")
    vm = boot()
    vm.attach(image, "data")
    device = vm.call("tests.lab.guest_tools:find_disk", serial="data")
    format_fast = "cryptsetup -q luksFormat --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000"
    vm.check([*format_fast.split(), device, "-"], stdin=KEY)
    vm.check(["cryptsetup", "luksOpen", "-d", "-", device, "data"], stdin=KEY)
    vm.check(["mkfs.ext4", "-q", "/dev/mapper/data"])
    vm.check(["mkdir", MOUNT_POINT])
    vm.check(["mount", "/dev/mapper/data", MOUNT_POINT])
    vm.check(["sh", "-c", f"cat >{MOUNT_POINT}/file; sync"], stdin=b"plaintext " * 1000)
    vm.destroy()
    assert b"plaintext " not in image.read_bytes()

    again = boot()
    again.attach(image, "data")
    device = again.call("tests.lab.guest_tools:find_disk", serial="data")
    again.check(["cryptsetup", "luksOpen", "-d", "-", device, "data"], stdin=KEY)
    again.check(["mkdir", MOUNT_POINT])
    again.check(["mount", "/dev/mapper/data", MOUNT_POINT])
    assert again.check(["cat", f"{MOUNT_POINT}/file"]) == b"plaintext " * 1000


def test_a_guest_that_is_gone_says_so(boot: Callable[[], PodVm]) -> None:
    vm = boot()
    with pytest.raises(GuestFailed, match=r"did not answer to sh -c"):
        vm.run(["sh", "-c", "echo o >/proc/sysrq-trigger; sleep 120"])
    with pytest.raises(GuestFailed, match="is gone"):
        vm.run(["true"])


def test_keys_reach_the_guest_through_cdh_alone(boot: Callable[[], PodVm], tmp_path: Path) -> None:
    kbs = Kbs(tmp_path / "kbs")
    kbs.put(KEY_PATH, KEY)
    vm = boot()
    cdh = Cdh(vm, kbs)
    get = "tests.lab.guest_tools:get_resource"
    assert vm.call(get, path=f"kbs:///{KEY_PATH}") == KEY.hex()
    assert kbs.requests == [(vm.name, KEY_PATH)]
    # No file, and no second way to the broker.
    assert not vm.call("os.path:exists", path=str(tmp_path))
    with pytest.raises(GuestFailed, match="Device or resource busy"):
        vm.call("tests.lab.guest_tools:open_port", name="kbs")
    assert vm.run(["grep", "-rlF", "kbs", "/run/lab-cdh"]).returncode == 0
    assert KEY not in vm.check(["sh", "-c", "cat /run/lab-cdh/*"])

    kbs.denied.add(KEY_PATH)
    assert vm.call(get, path=f"kbs:///{KEY_PATH}") == [13, "[CDH] [ERROR]: Get Resource failed"]
    assert "answered 403" in cdh.log()
    assert vm.call(get, path="kbs:///default/key/none") == [13, "[CDH] [ERROR]: Get Resource failed"]
    kbs.denied.clear()
    cdh.set_fault("GetResource", "late", seconds=0.5)
    assert vm.call(get, path=f"kbs:///{KEY_PATH}") == KEY.hex()
    cdh.set_fault("GetResource", "refuse")
    assert vm.call(get, path=f"kbs:///{KEY_PATH}")[0] == 13
    cdh.set_fault("GetResource", "hang")
    with pytest.raises(GuestFailed, match="TtrpcTimeout"):
        vm.call(get, path=f"kbs:///{KEY_PATH}", timeout_seconds=0.5)
    cdh.set_fault("GetResource", "none")
    cdh.kill()
    with pytest.raises(GuestFailed, match="TtrpcConnectionError"):
        vm.call(get, path=f"kbs:///{KEY_PATH}")
    cdh.start()
    assert vm.call(get, path=f"kbs:///{KEY_PATH}") == KEY.hex()
    assert [call["path"] for call in cdh.calls("GetResource")][-1] == f"kbs:///{KEY_PATH}"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_asking_cdh_to_format_a_volume_that_should_last_loses_it_since_v0_18(
    boot: Callable[[], PodVm], make_disk: MakeDisk, tmp_path: Path, dialect: Dialect
) -> None:
    """Field case I1: the two-step trap that the agent must not walk into."""
    kbs = Kbs(tmp_path / "kbs")
    kbs.put(KEY_PATH, KEY)
    image = make_disk("data")

    def start_pod() -> tuple[PodVm, str]:
        """What a forwarder does that decides by the LUKS magic alone."""
        vm = boot()
        Cdh(vm, kbs, dialect=dialect)
        vm.attach(image, "data")
        device = vm.call("tests.lab.guest_tools:find_disk", serial="data")
        magic = vm.check(["head", "-c", "6", device])
        source = "encrypted" if magic == b"LUKS\xba\xbe" else "empty"
        vm.check(["mkdir", MOUNT_POINT])
        options = {
            "devicePath": device,
            "sourceType": source,
            "encryptionType": "luks2",
            "targetType": "fileSystem",
            "filesystemType": "ext4",
            "mapperName": "caa-vol-0",
            "key": f"kbs:///{KEY_PATH}",
            "dataIntegrity": "false",
        }
        answer = vm.call("tests.lab.guest_tools:secure_mount", options=options, mount_point=MOUNT_POINT)
        assert answer == []
        return vm, source

    vm, source = start_pod()
    assert source == "empty"
    vm.check(["sh", "-c", f"cat >{MOUNT_POINT}/file; sync"], stdin=b"precious")
    assert b"noatime" in vm.check(["grep", MOUNT_POINT, "/proc/mounts"])
    vm.destroy()

    vm, source = start_pod()
    if dialect == "header-on-disk":
        assert source == "encrypted"
        assert vm.check(["cat", f"{MOUNT_POINT}/file"]) == b"precious"
    else:
        assert source == "empty", "the disk looked new again"
        assert not vm.call("os.path:exists", path=f"{MOUNT_POINT}/file")


def test_secure_mount_links_the_device_and_fails_without_a_reason(
    boot: Callable[[], PodVm], make_disk: MakeDisk, tmp_path: Path
) -> None:
    kbs = Kbs(tmp_path / "kbs")
    kbs.put(KEY_PATH, KEY)
    kbs.put("default/key/other", KEY[::-1])
    vm = boot()
    cdh = Cdh(vm, kbs)
    vm.attach(make_disk("data"), "data")
    device = vm.call("tests.lab.guest_tools:find_disk", serial="data")
    format_fast = "cryptsetup -q luksFormat --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000"
    vm.check([*format_fast.split(), device, "-"], stdin=KEY)
    numbers = vm.check(["lsblk", "-ndo", "MAJ:MIN", device]).decode().strip()
    good = {
        "deviceId": numbers,
        "devicePath": "/dev/null",
        "sourceType": "encrypted",
        "encryptionType": "luks2",
        "targetType": "device",
        "mapperName": "caa-vol-0",
        "key": f"kbs:///{KEY_PATH}",
        "dataIntegrity": "false",
        "newOption": "x",
    }

    def mount(**changes: str | None) -> list[object]:
        options = {key: value for key, value in (good | changes).items() if value is not None}
        answer: list[object] = vm.call(
            "tests.lab.guest_tools:secure_mount", options=options, mount_point="/run/link"
        )
        return answer

    refused = [13, "[CDH] [ERROR]: Secure Mount failed"]
    assert mount(key="kbs:///default/key/other") == refused
    assert mount(key="kbs:///default/key/none") == refused
    assert mount(key=None) == refused, "a random key does not open it"
    assert mount(deviceId=None) == refused, "/dev/null is not a LUKS device"
    assert mount(targetType="fileSystem", filesystemType="xfs") == refused
    assert mount(targetType="filesystem") == refused
    assert mount() == []
    assert os.fsencode(vm.call("os:readlink", path="/run/link")) == b"/dev/mapper/caa-vol-0"
    assert mount() == refused, "the mapper name exists"
    assert cdh.calls("SecureMount")[-1]["unknown_options"] == ["newOption"]
    assert KEY.hex() not in repr(cdh.calls("SecureMount"))

    vm.check(["rm", "/run/link"])
    vm.check(["cryptsetup", "close", "caa-vol-0"])
    cdh.set_fault("SecureMount", "die-after")
    with pytest.raises(GuestFailed, match="TtrpcConnectionError"):
        mount()
    assert vm.call("os.path:exists", path="/dev/mapper/caa-vol-0"), "the work was done"


def test_the_interpreter_in_the_guest_is_this_one(vm: PodVm) -> None:
    program = "import sys, google.protobuf; print(sys.prefix, sys.version)"
    shown = vm.check([sys.executable, "-c", program]).decode().strip()
    assert shown == f"{sys.prefix} {sys.version}"
