"""The guest's kernel and initramfs.

The initramfs holds busybox, kernel modules and one shell script. The guest's root is the host's own root,
shared read-only (:mod:`tests.lab.hypervisor`) under a tmpfs overlay: so the same interpreter, tools and
checkout run in the guest, and nothing it writes reaches the host.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

#: The virtiofs tag of the host's root.
ROOT_TAG = "host-root"

#: In the order of loading, dependencies left out. The guest's root has no modules of its kernel, so
#: whatever a test may need is loaded at boot.
MODULES = (
    *("virtio_pci", "virtiofs", "overlay", "virtio_console", "virtio_blk", "loop", "nbd"),
    *("dm-crypt", "xts", "aesni-intel", "sha256_ssse3", "algif_skcipher", "algif_hash"),
)

#: A module's options. Each nbd device costs boot time.
_OPTIONS = {"nbd.ko": "nbds_max=2"}

#: Most of it spares the emulated machine slow probes, self-tests and page walks; ``panic=-1`` with libvirt's
#: ``on_crash`` ends the domain rather than leave it spinning. ``ttyS0`` carries only warnings.
KERNEL_COMMAND_LINE = (
    "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable "
    "cryptomgr.notests audit=0 apparmor=0 random.trust_cpu=on i8042.noaux i8042.nokbd 8250.nr_uarts=1 "
    "no5lvl initcall_blacklist=init_kprobe_trace"
)

_INIT = """\
#!/bin/busybox sh
# Stops with a panic, which the console log shows, as soon as a step fails.
set -e
b=/bin/busybox
. /settings
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
while read -r module options; do $b insmod "/modules/$module" $options; done </modules/order
$b mount -t virtiofs -o ro "$root_tag" /lower
$b mount -t tmpfs -o mode=755 tmpfs /upper
$b mkdir /upper/data /upper/scratch
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/scratch overlay /system
for place in proc sys dev; do $b mount --move "/$place" "/system/$place"; done
$b mount -t tmpfs -o mode=755 tmpfs /system/run
$b mkdir -p /system/dev/shm /system/dev/pts
$b mount -t tmpfs tmpfs /system/dev/shm
$b mount -t devpts devpts /system/dev/pts
$b ip link set lo up
export HOME=/root LANG=C.UTF-8 PATH="$search_path" DM_DISABLE_UDEV=1 PYTHONDONTWRITEBYTECODE=1
# The shell stays process 1 and reaps orphans.
exec $b switch_root /system /bin/sh -c "cd $checkout; $python -S -m tests.lab.guest_server; echo server ended"
"""


def kernel_folder() -> Path:
    """Where ``tests/lab/setup.sh`` unpacked the guest's kernel.

    Raises:
        FileNotFoundError: it did not run yet.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "confidential-csi" / "kernel"
    if not (folder / "version").exists():
        raise FileNotFoundError(f"no guest kernel in {folder}: run tests/lab/setup.sh as root first")
    return folder


def kernel() -> Path:
    """The guest's kernel, a bzImage."""
    return kernel_folder() / "boot" / "vmlinuz"


def _module_files() -> list[Path]:
    """The files of :data:`MODULES` and what they depend on, in the order of loading."""
    folder = kernel_folder()
    version = (folder / "version").read_text().strip()
    shown = subprocess.run(
        ["modprobe", "--dirname", folder, "--set-version", version, "--show-depends", "--all", *MODULES],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    lines = [line.split() for line in shown.splitlines()]
    return list(dict.fromkeys(Path(words[1]) for words in lines if words[0] == "insmod"))


class _Archive:
    """A cpio archive in the "newc" format (Linux, Documentation/driver-api/early-userspace/buffer-format)."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._inode = 0

    def add(self, name: str, mode: int, data: bytes = b"") -> None:
        self._inode += 1
        numbers = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        self._content += b"070701" + b"".join(b"%08X" % number for number in numbers)
        self._content += name.encode() + b"\0"
        self._pad()
        self._content += data
        self._pad()

    def _pad(self) -> None:
        self._content += bytes(-len(self._content) % 4)

    def finish(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return bytes(self._content)


def build_initramfs() -> bytes:
    """The initramfs, ready to boot.

    Raises:
        FileNotFoundError: the kernel or busybox is missing; ``tests/lab/setup.sh`` installs both.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("no busybox: run tests/lab/setup.sh as root first")
    # No /sbin and /bin: Debian merged them into /usr.
    settings = {
        "root_tag": ROOT_TAG,
        "checkout": CHECKOUT,
        "python": sys.executable,
        "search_path": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
    }
    archive = _Archive()
    for folder in ("bin", "dev", "lower", "modules", "proc", "sys", "system", "upper"):
        archive.add(folder, stat.S_IFDIR | 0o755)
    archive.add("bin/busybox", stat.S_IFREG | 0o755, Path(busybox).read_bytes())
    archive.add("init", stat.S_IFREG | 0o755, _INIT.encode())
    lines = [f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items()]
    archive.add("settings", stat.S_IFREG | 0o644, "".join(lines).encode())
    modules = _module_files()
    order = "".join(f"{file.name} {_OPTIONS.get(file.name, '')}\n" for file in modules)
    archive.add("modules/order", stat.S_IFREG | 0o644, order.encode())
    for file in modules:
        archive.add(f"modules/{file.name}", stat.S_IFREG | 0o644, file.read_bytes())
    return archive.finish()
