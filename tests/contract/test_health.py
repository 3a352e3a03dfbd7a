"""What is told about the health of disks and of the backend itself, and to external-health-monitor."""

from __future__ import annotations

import pytest

from proto import csi_pb2
from providers.errors import ProviderError
from providers.interface import BackendCheck, BlockVolumeProvider, VolumeHealth
from tests.contract.backend import Backend
from tests.contract.calls import create, soon, volumes
from tests.unit.driver.rig import controller

_Rpc = csi_pb2.ControllerServiceCapability.RPC


def _checked(provider: BlockVolumeProvider) -> str | None:
    assert isinstance(provider, BackendCheck)
    return provider.check_backend(soon())


@pytest.mark.needs("health", "lister")
def test_a_new_volume_is_well_and_that_is_said_in_words(provider: BlockVolumeProvider) -> None:
    assert isinstance(provider, VolumeHealth)
    made = [create(provider, name) for name in ("pvc-1", "pvc-2")]
    conditions = provider.volume_conditions(volumes(provider).items, soon())
    assert conditions.keys() == {volume.handle for volume in made}
    for condition in conditions.values():
        assert not condition.abnormal
        assert condition.message.isprintable()
        assert condition.message


@pytest.mark.needs("health", "lister")
def test_external_health_monitor_gets_what_it_needs(provider: BlockVolumeProvider) -> None:
    """It ends unless it finds these; then it compares ids of a listing with those of PersistentVolumes."""
    with controller(provider, (provider.name,)) as client:
        offered = client.controller.ControllerGetCapabilities(
            csi_pb2.ControllerGetCapabilitiesRequest(), timeout=10
        )
        found = {capability.rpc.type for capability in offered.capabilities}
        assert {_Rpc.GET_VOLUME, _Rpc.LIST_VOLUMES, _Rpc.VOLUME_CONDITION} <= found
        made = client.create(required=provider.minimum_size_bytes, timeout=60)
        (entry,) = client.controller.ListVolumes(csi_pb2.ListVolumesRequest(), timeout=60).entries
        request = csi_pb2.ControllerGetVolumeRequest(volume_id=made.volume_id)
        status = client.controller.ControllerGetVolume(request, timeout=60).status
    assert entry.volume.volume_id == made.volume_id
    for condition in (entry.status.volume_condition, status.volume_condition):
        assert not condition.abnormal
        assert condition.message


@pytest.mark.needs("check")
def test_a_backend_that_serves_has_no_fault_and_none_is_made_by_asking(
    backend: Backend, provider: BlockVolumeProvider
) -> None:
    create(provider)
    before = backend.objects()
    assert _checked(provider) is None
    assert backend.objects() == before


@pytest.mark.needs("check")
def test_one_that_can_t_be_asked_is_noticed_and_its_return_too(
    backend: Backend, provider: BlockVolumeProvider
) -> None:
    """By an error, which passes, or by words, where a person must act."""
    with backend.unreachable():
        try:
            words = _checked(provider)
        except ProviderError as error:
            words = str(error)
        assert words
    assert _checked(provider) is None
