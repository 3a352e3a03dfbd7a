"""A libvirtd of our own, in namespaces of its own, without systemd and without traces.

Everything runs under one process in a private mount and process namespace. It waits for the end of its
standard input: when the test run ends, even by SIGKILL, the kernel ends libvirtd, QEMU and virtiofsd too.
Any number of them can run side by side; there are no fixed paths.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from xml.etree import ElementTree

import libvirt

from tests.lab import guest_image
from tests.lab.domain import domain_xml
from tests.lab.podvm import PodVm

#: What libvirtd and its QEMU driver keep on the host: each gets a private folder instead.
_PRIVATE = ("etc/libvirt", "run/libvirt", "var/lib/libvirt", "var/cache/libvirt", "var/log/libvirt")

#: Emptied in what the guest sees of the host: disk images, key folders and sockets are there.
_HIDDEN = ("/tmp", "/var/tmp", "/run")

_LIBVIRTD_CONF = """\
unix_sock_dir = "{state}/run/libvirt"
auth_unix_ro = "none"
auth_unix_rw = "none"
"""

# Without user = "root", starting a domain takes a minute; the rest switches off what needs systemd,
# cgroups or other daemons.
_QEMU_CONF = """\
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
"""

# Arguments: the state folder, the hidden folders, "--", what must stay visible.
_SUPERVISOR = """\
set -eu
state=$1
shift
for folder in {private}; do
  mount --bind "$state/$folder" "/$folder"
done
share=$state/share
mount --bind / "$share"
mount -o remount,bind,ro "$share"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then
    mount -t tmpfs -o mode=755 tmpfs "$share$1"
  fi
  shift
done
shift
for visible; do
  mkdir -p "$share$visible"
  mount --bind "$visible" "$share$visible"
  mount -o remount,bind,ro "$share$visible"
done
libvirtd --pid-file "$state/libvirtd.pid" --config "$state/etc/libvirt/libvirtd.conf" \
  >"$state/libvirtd.log" 2>&1 &
cat >/dev/null
""".format(private=" ".join(_PRIVATE))


def _ignore_libvirt_error(_context: object, _error: object) -> None:
    """libvirt's own handler prints each error on top of raising it."""


class Hypervisor:
    """A context manager that runs libvirtd and boots guests.

    Disk images must be on a filesystem that was mounted when the hypervisor started.
    """

    def __init__(self) -> None:
        self._vms: list[PodVm] = []

    def __enter__(self) -> Hypervisor:
        if os.geteuid() != 0:
            raise PermissionError("the lab needs root: libvirtd, mounts and namespaces")
        # Unix socket paths hold 107 bytes, so pytest's long temporary folders will not do.
        self.state = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp")).resolve()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        for folder in (*_PRIVATE, "share"):
            (self.state / folder).mkdir(parents=True)
        for folder in _PRIVATE:
            Path("/", folder).mkdir(parents=True, exist_ok=True)
        configuration = self.state / "etc/libvirt"
        (configuration / "libvirtd.conf").write_text(_LIBVIRTD_CONF.format(state=self.state))
        (configuration / "qemu.conf").write_text(_QEMU_CONF)
        self._initramfs = self.state / "initramfs"
        self._initramfs.write_bytes(guest_image.build_initramfs())
        visible = {str(guest_image.CHECKOUT), sys.prefix, sys.base_prefix}
        unshare = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"]
        supervisor_log = (self.state / "supervisor.log").open("wb")
        with supervisor_log:
            self._supervisor = subprocess.Popen(
                [
                    *unshare,
                    *("sh", "-c", _SUPERVISOR, "supervisor", self.state),
                    *(*_HIDDEN, "--", *sorted(visible)),
                ],
                stdin=subprocess.PIPE,
                stdout=supervisor_log,
                stderr=supervisor_log,
            )
        libvirt.registerErrorHandler(_ignore_libvirt_error, None)
        self._connection = self._connect()

    @property
    def uri(self) -> str:
        """By which others connect to this libvirtd."""
        return f"qemu+unix:///system?socket={self.state}/run/libvirt/libvirt-sock"

    def _connect(self, *, timeout: float = 120.0) -> libvirt.virConnect:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return libvirt.open(self.uri)
            except libvirt.libvirtError as error:
                if self._supervisor.poll() is not None or time.monotonic() > deadline:
                    logs = [self.state / "supervisor.log", self.state / "libvirtd.log"]
                    text = "".join(log.read_text(errors="replace") for log in logs if log.exists())
                    raise RuntimeError(f"libvirtd does not answer ({error}). Its log:\n{text}") from error
                time.sleep(0.02)

    def make_pool(self, name: str, directory: Path) -> None:
        """A storage pool of the files in a directory."""
        pool = ElementTree.Element("pool", type="dir")
        ElementTree.SubElement(pool, "name").text = name
        ElementTree.SubElement(ElementTree.SubElement(pool, "target"), "path").text = str(directory)
        self._connection.storagePoolDefineXML(ElementTree.tostring(pool, encoding="unicode")).create()

    def boot(self, name: str, *, memory_mib: int = 768, vcpus: int = 1, timeout: float = 240.0) -> PodVm:
        """Boot a guest and wait until it runs commands.

        Args:
            name: unique among the guests of this hypervisor that run.
            memory_mib: the guest's memory in MiB; its root overlay lives in it too.
            vcpus: more make the boot slower.
            timeout: seconds to wait; under full load a boot can take ten times its usual time.

        Raises:
            GuestFailed: it did not come up; the message holds the end of its console.
        """
        folder = self.state / name
        folder.mkdir()
        xml = domain_xml(
            name,
            memory_mib=memory_mib,
            vcpus=vcpus,
            kernel=guest_image.kernel(),
            initramfs=self._initramfs,
            share=self.state / "share",
            folder=folder,
        )
        domain = self._connection.createXML(xml)
        vm = PodVm(name, domain, folder, on_destroyed=self._forget)
        self._vms.append(vm)
        try:
            vm.wait_until_ready(timeout=timeout)
        except BaseException:
            vm.destroy()
            raise
        return vm

    def _forget(self, vm: PodVm) -> None:
        self._vms.remove(vm)
        # libvirt may still be clearing up there, too; the rest goes with all of the state.
        shutil.rmtree(self.state / vm.name, ignore_errors=True)

    def close(self) -> None:
        """Pull the plug of every guest, end libvirtd and remove what it left."""
        for vm in list(self._vms):
            vm.destroy()
        if hasattr(self, "_connection"):
            self._connection.close()
        if hasattr(self, "_supervisor"):
            assert self._supervisor.stdin is not None
            self._supervisor.stdin.close()
            self._supervisor.wait(timeout=120)
        shutil.rmtree(self.state)
