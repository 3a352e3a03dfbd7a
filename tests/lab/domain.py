"""The guest's libvirt XML."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

from tests.lab.guest_image import KERNEL_COMMAND_LINE, ROOT_TAG

#: Disks that can be attached to one guest at a time. Each needs a PCIe root port from the start, which costs
#: 0.1 s of each boot.
MAX_DISKS = 6

#: The virtio-serial ports between host and guest: commands, and keys for the CDH stand-in alone.
CONTROL_PORT = "control"
KBS_PORT = "kbs"


def channel_socket(folder: Path, port: str) -> Path:
    """The host's end of a virtio-serial port."""
    return folder / f"{port}.sock"


def console_log(folder: Path) -> Path:
    """What the guest's kernel and its first process print."""
    return folder / "console.log"


def domain_xml(
    name: str, *, memory_mib: int, vcpus: int, kernel: Path, initramfs: Path, share: Path, folder: Path
) -> str:
    """A guest without firmware settings, network or clock sources that cost time to emulate."""
    channels = "".join(
        f"""
    <channel type='unix'>
      <source mode='bind' path={quoteattr(str(channel_socket(folder, port)))}/>
      <target type='virtio' name='{port}'/>
    </channel>"""
        for port in (CONTROL_PORT, KBS_PORT)
    )
    # Two more than disks: for virtio-serial and virtiofs.
    ports = "<controller type='pci' model='pcie-root-port'/>" * (MAX_DISKS + 2)
    return f"""
<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>{memory_mib}</memory>
  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
  <vcpu>{vcpus}</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initramfs}</initrd>
    <cmdline>{KERNEL_COMMAND_LINE}</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='maximum'/>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>destroy</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='pci' model='pcie-root'/>
    {ports}
    <controller type='usb' model='none'/>
    <filesystem type='mount' accessmode='passthrough'>
      <driver type='virtiofs'/>
      <binary path='/usr/lib/qemu/virtiofsd'><cache mode='always'/></binary>
      <source dir={quoteattr(str(share))}/>
      <target dir='{ROOT_TAG}'/>
    </filesystem>
    <serial type='file'><source path={quoteattr(str(console_log(folder)))}/></serial>
    {channels}
    <memballoon model='none'/>
  </devices>
</domain>
"""


def disk_xml(source: Path, serial: str, target: str) -> str:
    """A virtio-blk disk: a raw image, or what an NBD server offers on a Unix socket.

    Flushes of the guest reach the file or server; what was not flushed is lost with QEMU.
    """
    if source.is_socket():
        kind = "network"
        where = f"<source protocol='nbd'><host transport='unix' socket={quoteattr(str(source))}/></source>"
    else:
        kind, where = "file", f"<source file={quoteattr(str(source))}/>"
    return f"""
<disk type='{kind}' device='disk'>
  <driver name='qemu' type='raw' cache='writeback' discard='unmap'/>
  {where}
  <target dev='{target}' bus='virtio'/>
  <serial>{serial}</serial>
</disk>
"""
