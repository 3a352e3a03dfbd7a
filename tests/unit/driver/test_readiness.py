"""What Probe, metrics and log say of the backend's answers."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from driver.identity import IdentityService
from driver.inventory import Inventory
from driver.metrics import ControllerMetrics
from driver.observation import CheckResult, Observer, VolumeCount, VolumeKind
from driver.readiness import BackendReadiness
from proto import csi_pb2
from providers.deadline import Deadline
from providers.errors import UnavailableError
from providers.interface import BackendCheck, VolumeCondition
from tests.fakes.memory_provider import GIB, CloudyProvider, MemoryCloud, MinimalProvider, raising
from tests.unit.driver.rig import controller, mount, serving
from tests.unit.driver.test_logs import captured

DENIED = "EC2 refused DescribeVolumes with UnauthorizedOperation"
DOWN = UnavailableError("EC2 could not be asked")


class Scripted(BackendCheck):
    """Answers one after the other."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self._answers = list(answers)

    def check_backend(self, deadline: Deadline) -> str | None:
        assert 0 < deadline.remaining() <= 20
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Noting(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.checks: list[CheckResult] = []
        self.ready: list[bool] = []
        self.counts: list[dict[VolumeKind, VolumeCount]] = []
        self.abnormal = -1
        self.failed = 0

    def backend_checked(self, result: CheckResult, *, ready: bool) -> None:
        self.checks.append(result)
        self.ready.append(ready)

    def volumes_counted(self, counts: Any, abnormal: int) -> None:
        self.counts.append(dict(counts))
        self.abnormal = abnormal

    def volumes_not_counted(self) -> None:
        self.failed += 1


def _is_ready(readiness: BackendReadiness) -> bool:
    with serving({"Identity": IdentityService(can_expand=True, readiness=readiness.reason)}) as client:
        probe = client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60)
    assert probe.HasField("ready")
    return probe.ready.value


def test_a_refusal_makes_the_plugin_not_ready_until_it_is_mended() -> None:
    noted = Noting()
    readiness = BackendReadiness(Scripted(DENIED, DENIED, None), noted)
    assert _is_ready(readiness), "before anything is known"
    waits = [readiness.check()]
    assert not _is_ready(readiness)
    assert readiness.reason() == DENIED
    waits += [readiness.check(), readiness.check()]
    assert _is_ready(readiness)
    assert waits[0] == waits[1] < waits[2]
    assert noted.checks == [CheckResult.REFUSED, CheckResult.REFUSED, CheckResult.SERVED]


def test_an_outage_changes_nothing() -> None:
    """kubelet would kill a plugin that is not ready, which mends no cloud."""
    noted = Noting()
    readiness = BackendReadiness(Scripted(DOWN, None, DOWN, DENIED, DOWN), noted)
    ready = []
    for _ in range(5):
        readiness.check()
        ready.append(readiness.reason() is None)
    assert ready == noted.ready == [True, True, True, False, False]
    down, served, refused = CheckResult.UNREACHABLE, CheckResult.SERVED, CheckResult.REFUSED
    assert noted.checks == [down, served, down, refused, down]


def test_only_changes_are_logged() -> None:
    readiness = BackendReadiness(Scripted(None, None, DENIED, DENIED, DOWN, None), Observer())
    with captured("json", "info") as stream:
        for _ in range(6):
            readiness.check()
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["result"]) for line in lines] == [
        ("INFO", "ok"),
        ("WARNING", "refused"),
        ("WARNING", "unreachable"),
        ("INFO", "ok"),
    ]
    assert [line.get("reason") for line in lines] == [None, DENIED, str(DOWN), None]


def test_a_probe_that_is_not_ready_is_logged_once() -> None:
    identity = IdentityService(can_expand=True, readiness=lambda: DENIED)
    with captured("json", "info") as stream, serving({"Identity": identity}) as client:
        for _ in range(3):
            client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60)
        logged = stream.getvalue()
    assert logged.count('"not ready"') == 1


@pytest.mark.parametrize(
    ("result", "ready"),
    [
        (CheckResult.SERVED, True),
        (CheckResult.UNREACHABLE, True),
        (CheckResult.UNREACHABLE, False),
        (CheckResult.REFUSED, False),
    ],
)
def test_metrics_tell_what_probe_tells(result: CheckResult, *, ready: bool) -> None:
    metrics = ControllerMetrics("aws")
    metrics.backend_checked(result, ready=ready)
    assert metrics.registry.get_sample_value("confidential_csi_ready") == ready
    labels = {"provider": "aws", "result": result.value}
    assert metrics.registry.get_sample_value("confidential_csi_backend_checks_total", labels) == 1


def test_volumes_are_counted_by_state_and_encryption() -> None:
    cloud = MemoryCloud()
    provider = CloudyProvider(cloud)
    noted = Noting()
    with controller(provider) as client:
        plain = client.create("plain", required=2 * GIB)
        client.create("sealed", parameters={"encrypt-type": "luks2", "kbs-key-id": "default/key/1"})
        publish = csi_pb2.ControllerPublishVolumeRequest(
            volume_id=plain.volume_id, node_id="node/worker-1", volume_capability=mount()
        )
        client.controller.ControllerPublishVolume(publish, timeout=10)
    cloud.conditions[next(iter(cloud.volumes))] = VolumeCondition(True, "it is broken")
    inventory = Inventory(provider, noted)
    inventory.count()
    assert noted.counts == [
        {
            VolumeKind("published", "none"): VolumeCount(1, 2 * GIB),
            VolumeKind("available", "luks2"): VolumeCount(1, GIB),
        }
    ]
    assert noted.abnormal == 1
    metrics = ControllerMetrics("memory")
    metrics.volumes_counted(noted.counts[0], noted.abnormal)
    for kind in VolumeKind.all():
        labels = {"state": kind.state, "encryption": kind.encryption}
        shown = metrics.registry.get_sample_value("confidential_csi_volumes", labels)
        assert shown == noted.counts[0].get(kind, VolumeCount()).volumes


def test_a_listing_that_fails_is_counted_and_comes_again() -> None:
    cloud = MemoryCloud()
    cloud.before["list_volumes"].append(raising(DOWN))
    noted = Noting()
    inventory = Inventory(CloudyProvider(cloud), noted)
    soon = inventory.count()
    assert (noted.failed, noted.counts) == (1, [])
    assert inventory.count() > soon
    assert noted.counts == [{}]


def test_a_provider_that_can_t_list_is_not_asked() -> None:
    cloud = MemoryCloud()
    Inventory(MinimalProvider(cloud), cast(Observer, None)).start()
    assert cloud.calls == []
