"""Exceptions to statuses: the table, and field case A11 over a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from driver import errors
from driver.errors import MAXIMUM_MESSAGE_BYTES, PROVIDER_CODES, DriverError, bounded, code_for
from proto import csi_pb2
from providers import errors as provider_errors
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider, raising
from tests.unit.driver.rig import Client, controller, from_volume, refused, serving

Code = grpc.StatusCode


def test_every_provider_error_has_a_code() -> None:
    classes = {
        value
        for value in vars(provider_errors).values()
        if isinstance(value, type) and issubclass(value, provider_errors.ProviderError)
    }
    startup_only = {provider_errors.ConfigurationError}
    assert set(PROVIDER_CODES) == classes - startup_only


def test_no_error_of_the_driver_is_unknown() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, DriverError)
    ]
    assert len(classes) > 5
    assert all(value.code not in (Code.UNKNOWN, Code.OK) for value in classes)


def test_a_subclass_of_a_third_party_maps_like_its_base() -> None:
    class ZoneFull(provider_errors.QuotaExceededError):
        pass

    class Odd(provider_errors.ProviderError):
        pass

    assert code_for(ZoneFull()) is Code.RESOURCE_EXHAUSTED
    assert code_for(Odd()) is Code.INTERNAL
    assert code_for(KeyError()) is None


@pytest.mark.parametrize("text", ["", "short", "x" * 5000, "\u00e9" * 980, "\U0001f512" * 500])
def test_messages_are_cut_by_bytes_and_stay_text(text: str) -> None:
    cut = bounded(text)
    assert len(cut.encode()) <= MAXIMUM_MESSAGE_BYTES
    assert cut == text or (cut.endswith("\u2026") and text.startswith(cut[:-1]))


class Faulty:
    """A service whose RPCs fail in the ways Python makes easy."""

    def ControllerGetCapabilities(self, _request: object, context: grpc.ServicerContext) -> object:
        try:
            context.abort(Code.FAILED_PRECONDITION, "chosen by the handler")
        except Exception as error:
            raise KeyError("the broad except of field case A11") from error

    def ControllerGetVolume(self, _request: object, context: grpc.ServicerContext) -> object:
        context.abort(Code.NOT_FOUND, "chosen " + "x" * 2000)

    def ListVolumes(self, _request: object, context: grpc.ServicerContext) -> csi_pb2.ListVolumesResponse:
        try:
            context.abort(Code.RESOURCE_EXHAUSTED, "swallowed")
        except Exception:
            return csi_pb2.ListVolumesResponse()

    def GetCapacity(self, _request: object, _context: grpc.ServicerContext) -> object:
        return {"present": 1}["absent"]

    def DeleteVolume(self, _request: object, context: grpc.ServicerContext) -> object:
        context.abort(Code.UNKNOWN, "nobody's code")

    def ValidateVolumeCapabilities(self, _request: object, _context: grpc.ServicerContext) -> object:
        raise TimeoutError


@pytest.fixture(scope="module")
def faulty() -> Iterator[Client]:
    with serving({"Controller": Faulty()}) as client:
        yield client


def test_a_handler_s_own_abort_keeps_its_code(faulty: Client) -> None:
    """Field case A11."""
    with refused(Code.FAILED_PRECONDITION) as refusal:
        faulty.controller.ControllerGetCapabilities(csi_pb2.ControllerGetCapabilitiesRequest())
    assert refusal.message == "chosen by the handler"
    with refused(Code.NOT_FOUND) as refusal:
        faulty.controller.ControllerGetVolume(csi_pb2.ControllerGetVolumeRequest(volume_id="x"))
    assert refusal.message.startswith("chosen xxx")
    with refused(Code.RESOURCE_EXHAUSTED):
        faulty.controller.ListVolumes(csi_pb2.ListVolumesRequest())


def test_no_status_is_ever_unknown(faulty: Client) -> None:
    """Field case A11."""
    with refused(Code.INTERNAL) as refusal:
        faulty.controller.GetCapacity(csi_pb2.GetCapacityRequest())
    assert "KeyError" in refusal.message
    assert "absent" not in refusal.message
    with refused(Code.INTERNAL):
        faulty.controller.DeleteVolume(csi_pb2.DeleteVolumeRequest(volume_id="x"))
    with refused(Code.INTERNAL):
        faulty.controller.ValidateVolumeCapabilities(csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id="x"))
    with refused(Code.UNIMPLEMENTED):
        faulty.controller.ControllerModifyVolume(csi_pb2.ControllerModifyVolumeRequest(volume_id="x"))


@pytest.mark.parametrize(
    ("when", "error", "code"),
    [
        ("before", provider_errors.QuotaExceededError("VolumeLimitExceeded"), Code.RESOURCE_EXHAUSTED),
        ("before", provider_errors.InvalidParameterError("ParamValidationError"), Code.INVALID_ARGUMENT),
        ("before", provider_errors.UnavailableError("EndpointConnectionError"), Code.UNAVAILABLE),
        ("after", provider_errors.OutcomeUnknownError("connection lost"), Code.ABORTED),
        ("after", provider_errors.DeadlineError("too late"), Code.DEADLINE_EXCEEDED),
        ("after", provider_errors.CorruptStateError("not ours"), Code.ABORTED),
        ("after", provider_errors.ProviderError("something"), Code.ABORTED),
        ("after", TimeoutError(), Code.ABORTED),
        ("after", KeyError("error"), Code.ABORTED),
        ("after", AttributeError("'NoneType' object has no attribute 'code'"), Code.ABORTED),
    ],
)
def test_an_error_once_the_create_may_be_sent_is_not_final(
    when: str, error: Exception, code: grpc.StatusCode
) -> None:
    """Field case A11: the provisioner would forget the disk."""
    cloud = MemoryCloud()
    getattr(cloud, when)["create_volume"].append(raising(error))
    with controller(MemoryProvider(cloud)) as client:
        with refused(code):
            client.create()
        volume = client.create()
        assert len(cloud.volumes) == 1
        client.delete(volume.volume_id)
    assert not cloud.volumes


def test_an_unplanned_error_before_anything_was_sent_is_internal() -> None:
    """Field case A11."""
    cloud = MemoryCloud()
    with controller(MemoryProvider(cloud)) as client:
        source = from_volume(client.create("source").volume_id)
        cloud.before["get_volume_info"].append(raising(KeyError("bug")))
        with refused(Code.INTERNAL):
            client.create("copy", source=source)
    assert len(cloud.volumes) == 1


def test_absent_fields_are_no_errors() -> None:
    """Field case A11: parameters and capacity_range unset."""
    with controller(MemoryProvider(MemoryCloud())) as client:
        assert client.create(required=0, parameters={}).capacity_bytes
