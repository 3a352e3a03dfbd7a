"""What the guests know and the worker does not: how full a volume is, and whether it has grown.

Asked are the agents in the PodVMs, by way of cloud-api-adaptor's sockets. A volume is named by its disk, as
``/run/cloud-volumes/by-disk/<url-safe base64 of the disk id>``; only an agent that mounted it knows it so.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError

from driver import ttrpc
from driver.errors import DriverError, FailedPrecondition, Unavailable, bounded
from driver.pod_sockets import PodSockets
from proto import agent_pb2, csi_pb2

AGENT_SERVICE: Final = "grpc.AgentService"
BY_DISK: Final = "/run/cloud-volumes/by-disk/"

#: gRPC codes, as ttrpc has them too.
_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED, _FAILED_PRECONDITION, _UNIMPLEMENTED = 3, 5, 7, 9, 12


@dataclass(frozen=True)
class _Meaning:
    """How a guest's code is passed on, and what to do."""

    error: type[DriverError]
    advice: str


#: Codes that guests answer, and what becomes of them. All others, and no answer at all, are UNAVAILABLE.
#: Never INVALID_ARGUMENT, NOT_FOUND or OUT_OF_RANGE: kubelet and external-resizer give up an expansion for
#: good on these. On FAILED_PRECONDITION kubelet mounts the volume all the same, and does not ask again
#: before the next mount.
GUEST_CODES: Mapping[int, _Meaning] = MappingProxyType(
    {
        _NOT_FOUND: _Meaning(
            Unavailable, "no container there has the volume mounted; it grows when it is mounted"
        ),
        _FAILED_PRECONDITION: _Meaning(
            FailedPrecondition, "the guest refused; docs/troubleshooting.md explains the rule"
        ),
        _UNIMPLEMENTED: _Meaning(
            FailedPrecondition,
            "the guest's agent can't do this: its PodVM image lacks confidential-csi-agent, or runs it as "
            "guard; the volume grows when the pod is started again",
        ),
        _INVALID_ARGUMENT: _Meaning(
            FailedPrecondition, "the guest's agent does not understand the call; update the PodVM image"
        ),
        _PERMISSION_DENIED: _Meaning(
            FailedPrecondition,
            "the guest's agent policy forbids the call, and no confidential-csi-agent stands before it",
        ),
    }
)

_UNITS: Final = MappingProxyType(
    {
        agent_pb2.VolumeUsage.BYTES: csi_pb2.VolumeUsage.BYTES,
        agent_pb2.VolumeUsage.INODES: csi_pb2.VolumeUsage.INODES,
    }
)
_MAXIMUM_NUMBER: Final = (1 << 63) - 1
_SHOWN_BYTES: Final = 400


class Guests:
    """The agents of the PodVMs on this worker."""

    def __init__(self, pods: PodSockets) -> None:
        self._pods = pods

    def that_may_use(self, published_at_ns: int, of_other_pods: Container[str]) -> tuple[str, ...]:
        """Ids of the sandboxes that may have mounted a volume beside which none is noted; often none.

        Kata's Go runtime notes the sandbox before it uses the volume. The one in Rust notes nothing; but
        kubelet makes a sandbox only after publishing its pod's volumes, so no older one comes into question,
        nor one of those known to be ``of_other_pods``.

        Raises:
            Unavailable: the system does not let us look.
        """
        try:
            young = self._pods.made_since(published_at_ns)
        except ttrpc.NoAnswer as error:
            raise Unavailable(f"can't tell which PodVMs run on this node: {error}") from error
        return tuple(one for one in young if one not in of_other_pods)

    def stats(
        self, sandbox_ids: Sequence[str], disk_id: str, seconds: float
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        """Usage and condition, as the guest that mounted the volume reports them.

        A guest whose policy keeps the figures from the host reports a condition alone.

        Raises:
            Unavailable, FailedPrecondition: no guest told them (:data:`GUEST_CODES`).
        """
        request = agent_pb2.VolumeStatsRequest(volume_guest_path=_guest_path(disk_id))
        payload = self._ask(sandbox_ids, "GetVolumeStats", request.SerializeToString(), seconds)
        try:
            answer = agent_pb2.VolumeStatsResponse.FromString(payload)
        except DecodeError as error:
            raise Unavailable("the guest's GetVolumeStats response can't be read") from error
        condition = csi_pb2.VolumeCondition(
            abnormal=answer.volume_condition.abnormal,
            message=_shown(answer.volume_condition.message) or "the guest reports no condition",
        )
        return csi_pb2.NodeGetVolumeStatsResponse(usage=_usage(answer), volume_condition=condition)

    def grow(self, sandbox_ids: Sequence[str], disk_id: str, size_bytes: int, seconds: float) -> None:
        """Return once the volume's file system fills its disk, which has ``size_bytes`` at least.

        Raises:
            Unavailable: no guest answered for the volume; it may grow yet. Call again.
            FailedPrecondition: its guest refused, or can't; nothing has changed (:data:`GUEST_CODES`).
        """
        request = agent_pb2.ResizeVolumeRequest(volume_guest_path=_guest_path(disk_id), size=size_bytes)
        if self._ask(sandbox_ids, "ResizeVolume", request.SerializeToString(), seconds):
            raise Unavailable("the guest's ResizeVolume response is not empty, so it is another call's")

    def _ask(self, sandbox_ids: Sequence[str], method: str, payload: bytes, seconds: float) -> bytes:
        """The payload of the guest that has the volume. Each guest gets an equal share of the time left."""
        deadline = time.monotonic() + seconds
        failures: list[DriverError] = []
        not_mounted: list[DriverError] = []
        for number, sandbox_id in enumerate(sandbox_ids):
            share = max(0.0, deadline - time.monotonic()) / (len(sandbox_ids) - number)
            where = f"{method}: PodVM of sandbox {sandbox_id[:64]}"
            try:
                return self._pods.call(sandbox_id, AGENT_SERVICE, method, payload, share)
            except ttrpc.NoAnswer as error:
                failures.append(Unavailable(f"{where} can't be reached: {error}; call again"))
            except ttrpc.Refusal as refusal:
                failure = _failure(where, refusal)
                if refusal.code == _FAILED_PRECONDITION:
                    raise failure from refusal  # only an agent that has the volume says so
                (not_mounted if refusal.code == _NOT_FOUND else failures).append(failure)
        first = (failures or not_mounted)[0]
        if len(sandbox_ids) == 1:
            raise first
        raise Unavailable(
            f"none of the {len(sandbox_ids)} PodVMs that may use the volume answers for it, for one: {first}"
        )


def _failure(where: str, refusal: ttrpc.Refusal) -> DriverError:
    meaning = GUEST_CODES.get(refusal.code, _Meaning(Unavailable, "call again"))
    return meaning.error(
        f"{where} answered with status {refusal.code}: {_shown(refusal.message)} ({meaning.advice})"
    )


def _guest_path(disk_id: str) -> str:
    return BY_DISK + base64.urlsafe_b64encode(disk_id.encode()).decode()


def _usage(answer: agent_pb2.VolumeStatsResponse) -> list[csi_pb2.VolumeUsage]:
    """The figures, each unit once; units that we don't know are left out.

    Raises:
        Unavailable: they can't be true.
    """
    usage: dict[int, csi_pb2.VolumeUsage] = {}
    for one in answer.usage:
        if one.unit not in _UNITS:
            continue
        if one.unit in usage or not max(one.used, one.available) <= one.total <= _MAXIMUM_NUMBER:
            raise Unavailable("the figures in the guest's GetVolumeStats response make no sense")
        usage[one.unit] = csi_pb2.VolumeUsage(
            unit=_UNITS[one.unit], total=one.total, used=one.used, available=one.available
        )
    return list(usage.values())


def _shown(text: str) -> str:
    """A guest's words, fit for an event and a log line."""
    beginning = text[:_SHOWN_BYTES]
    return bounded("".join(one if one.isprintable() else "?" for one in beginning), _SHOWN_BYTES)
