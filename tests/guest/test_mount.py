"""mount, status and unmount in a real guest, with real dm-crypt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.pod import KEY, KEY_ID, PLAINTEXT, SOURCE, MakeDisk, Pod
from tests.lab.cdh_storage import DIALECTS, Dialect
from tests.lab.kbs import Kbs
from tests.lab.podvm import PodVm


@pytest.mark.parametrize("dialect", DIALECTS)
def test_data_survives_a_new_vm_and_never_reaches_the_disk_in_the_clear(
    boot: Callable[[], PodVm], make_disk: MakeDisk, tmp_path: Path, dialect: Dialect
) -> None:
    """Field cases I1 and I7."""
    kbs = Kbs(tmp_path / "kbs")
    kbs.put(KEY_ID, KEY)
    image = make_disk("data")

    first = Pod(boot(), kbs, dialect)
    first.attach(image, "disk-1")
    mounted = first.mount_one("disk-1", fs_group="1234").result()
    assert mounted == {"volumes": [{"name": "vol-0", "mount_point": "/data", "source": SOURCE}]}
    options = first.sh(f"grep ' {SOURCE} ' /proc/mounts").decode()
    assert options.split()[0] == "/dev/mapper/caa-vol-0"
    assert {"nodev", "nosuid", "noatime", "rw"} <= set(options.split()[3].split(","))
    assert first.sh(f"stat -c '%a %g' {SOURCE}") == b"2775 1234\n"
    assert first.status() == [{"name": "vol-0", "mounted": True, "open": True, "shielded": True}]
    seconds = first.mount_seconds()["vol-0"]
    assert list(seconds) == ["detect", "key", "check", "open", "mount", "grow"]
    assert all(0 <= one < 300 for one in seconds.values())
    assert seconds["open"] > 0
    first.write_file()
    calls = first.cdh.calls("SecureMount")
    assert [call["options"]["sourceType"] for call in calls] == ["encrypted"], "CDH must never format"
    assert [call["unknown_options"] for call in calls] == [[]]
    first.vm.destroy()
    assert PLAINTEXT not in image.read_bytes()
    assert KEY not in image.read_bytes()

    second = Pod(boot(), kbs, dialect)
    second.attach(image, "disk-1")
    assert second.mount_one("disk-1").result() == mounted
    assert second.read_file() == PLAINTEXT * 1000
    assert second.unmount_all().result() == {"unmounted": ["vol-0"]}
    assert second.leftovers() == ""
    assert second.status() == []
    assert second.unmount_all().result() == {"unmounted": []}
    assert PLAINTEXT not in image.read_bytes()
