"""Small functions that tests call in the guest (:meth:`tests.lab.podvm.PodVm.call`)."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from agent.ttrpc import Client, TtrpcError
from proto import cdh_pb2
from tests.lab.cdh import SOCKET
from tests.lab.guest_server import port_device

_POLL_INTERVAL = 0.01


def disks() -> dict[str, str]:
    """The virtio disks that the guest has: serial to device."""
    found = {}
    for file in Path("/sys/block").glob("vd*/serial"):
        with suppress(OSError):  # it leaves at this moment
            found[file.read_text().strip()] = f"/dev/{file.parent.name}"
    return found


def find_disk(serial: str, timeout_seconds: float = 120.0) -> str:
    """Wait until a disk is there and can be opened; its device.

    Raises:
        TimeoutError: it did not come.
    """
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        device = disks().get(serial)
        # The kernel shows the serial before it lets anybody open the disk.
        with suppress(OSError):
            if device is not None:
                Path(device).open("rb", buffering=0).close()
                return device
        time.sleep(_POLL_INTERVAL)
    raise TimeoutError(f"no disk with serial {serial} within {timeout_seconds} s; there are {disks()}")


def wait_for_size(device: str, size: int, timeout_seconds: float = 120.0) -> bool:
    """Whether a device reaches a size in bytes in time."""
    file = Path("/sys/class/block", Path(device).name, "size")
    deadline = time.monotonic() + timeout_seconds
    while int(file.read_text()) * 512 != size:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL)
    return True


def open_port(name: str) -> None:
    """Try to open a virtio-serial port; whoever holds it keeps others out."""
    Path(port_device(name)).open("rb", buffering=0).close()


def get_resource(path: str, timeout_seconds: float = 30.0) -> str | list[object]:
    """CDH's answer to GetResource: the bytes in hexadecimal, or code and message of its refusal."""
    request = cdh_pb2.GetResourceRequest(ResourcePath=path)
    answer = _call("api.GetResourceService", "GetResource", request.SerializeToString(), timeout_seconds)
    if isinstance(answer, TtrpcError):
        return [int(answer.code), answer.message]
    return cdh_pb2.GetResourceResponse.FromString(answer).Resource.hex()


def secure_mount(options: dict[str, str], mount_point: str, timeout_seconds: float = 60.0) -> list[object]:
    """CDH's answer to a SecureMount of a block device: empty, or code and message of its refusal."""
    request = cdh_pb2.SecureMountRequest(volume_type="block-device", options=options, mount_point=mount_point)
    answer = _call("api.SecureMountService", "SecureMount", request.SerializeToString(), timeout_seconds)
    return [int(answer.code), answer.message] if isinstance(answer, TtrpcError) else []


def _call(service: str, method: str, payload: bytes, timeout: float) -> bytes | TtrpcError:
    with Client(SOCKET) as client:
        try:
            return client.call(service, method, payload, timeout=timeout)
        except TtrpcError as error:
            return error
