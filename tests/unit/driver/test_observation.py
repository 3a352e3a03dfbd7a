"""What is told of calls: their request id in every line, and their figures to the observer."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from driver.controller import ControllerService
from driver.direct_volumes import DirectVolumes, directory_name
from driver.errors import Internal
from driver.identity import IdentityService
from driver.logs import request_id
from driver.metrics import NodeMetrics
from driver.mountinfo import MountInfo
from driver.observation import Observer
from proto import csi_pb2, csi_pb2_grpc
from providers import observation
from providers.aws import AwsProvider
from providers.azure.observed import operation_of
from providers.bounded import bounded
from providers.deadline import Deadline
from providers.errors import UnavailableError
from providers.interface import Volume
from providers.libvirt.connections import Connections, opener
from providers.observation import Outcome, ProviderObserver, observe
from tests.contract.aws_backend import SETTINGS
from tests.contract.libvirt_backend import LibvirtBackend
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.messages import Dropped, method, throttled
from tests.fakes.arm.messages import Fault as ArmFault
from tests.fakes.arm.rig import Rig, soon
from tests.fakes.arm.rig import create as create_disk
from tests.fakes.ec2 import Cloud, Ec2Server, Fault
from tests.fakes.ec2.server import clients_of
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider, raising
from tests.unit.driver.node_support import Worker
from tests.unit.driver.rig import refused, serving
from tests.unit.driver.test_logs import captured

_GROUP = "https://x/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute"
_LOG = logging.getLogger("providers.talking")


class Talking(MemoryProvider):
    """Logs in the thread of the RPC, and in that of an SDK call."""

    def get_volume_info(self, handle: str, deadline: Deadline) -> Volume:
        _LOG.info("in the call's thread")
        bounded(lambda: _LOG.info("in a thread of the SDK's"), deadline)
        return super().get_volume_info(handle, deadline)


class Noting(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.seconds: list[float] = []
        self.calls: list[tuple[str, Outcome]] = []
        self.open_calls: Counter[str] = Counter()
        self.repeated: list[str] = []
        self.batches: list[tuple[str, int]] = []
        self.waits: dict[str, float] = {}
        self._mutex = threading.Lock()

    def rpc_began(self, method: str) -> None:
        self.began.append(method)

    def rpc_ended(self, method: str, code: str, seconds: float) -> None:
        self.ended.append((method, code))
        self.seconds.append(seconds)

    def call_began(self, operation: str) -> None:
        with self._mutex:
            self.open_calls[operation] += 1

    def call_ended(self, operation: str, outcome: Outcome, seconds: float) -> None:
        with self._mutex:
            self.open_calls[operation] -= 1
            self.calls.append((operation, outcome))
            self.seconds.append(seconds)

    def call_repeated(self, operation: str) -> None:
        self.repeated.append(operation)

    def asked_together(self, question: str, size: int) -> None:
        self.batches.append((question, size))

    def waited(self, what: str, seconds: float) -> None:
        self.waits[what] = seconds


@pytest.fixture
def noting() -> Noting:
    """An observer of this process, for one test."""
    return Noting()


@pytest.fixture(autouse=True)
def _observed(noting: Noting) -> Iterator[None]:
    observe(noting)
    yield
    observe(ProviderObserver())


def test_lines_of_provider_and_sdk_bear_the_id_of_their_request() -> None:
    """Also where several calls are in progress at once."""
    services = {"Controller": ControllerService(Talking(MemoryCloud()), ("memory",))}
    request = csi_pb2.ControllerGetVolumeRequest(volume_id="memory:vol-" + 40 * "0")

    def ask(_number: int) -> None:
        with refused(grpc.StatusCode.NOT_FOUND):
            client.controller.ControllerGetVolume(request, timeout=10)

    with captured("json", "info") as stream, serving(services) as client:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(8)))
        _LOG.info("of no request")
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told: dict[int | None, list[str]] = {}
    for line in lines:
        told.setdefault(line.get("request_id"), []).append(line["message"])
    assert told.pop(None) == ["of no request"]
    assert len(told) == 8
    expected = ["in the call's thread", "in a thread of the SDK's", "rpc"]
    assert all(messages == expected for messages in told.values()), told


def test_calls_of_the_cloud_are_logged_at_debug_with_the_id_of_their_request() -> None:
    cloud = Cloud()
    with Ec2Server(cloud) as server, captured("json", "debug") as stream:
        provider = AwsProvider(SETTINGS, clients_of(server.url))
        with serving({"Controller": ControllerService(provider, ("aws",))}) as client:
            client.create(timeout=30)
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (created,) = (line for line in lines if line["message"].startswith("CreateVolume: OK after"))
    (rpc,) = (line for line in lines if line["message"] == "rpc")
    assert created["request_id"] == rpc["request_id"]
    assert created["logger"] == "providers.observation"


def test_a_probe_that_finds_no_fault_is_logged_at_debug_alone() -> None:
    for level, count in (("info", 0), ("debug", 1)):
        with (
            captured("json", level) as stream,
            serving({"Identity": IdentityService(can_expand=True)}) as client,
        ):
            client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60)
            logged = stream.getvalue()
        assert logged.count('"message": "rpc"') == count


def test_threads_of_libvirt_calls_bear_it_too() -> None:
    connections = Connections(opener("test:///default"))
    with captured("json", "info") as stream, request_id(7):
        connections.run("list", lambda _connection: _LOG.info("libvirt"), Deadline.after(20))
        (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["request_id"] == 7


def test_every_call_is_told_with_its_code_whatever_ends_it(noting: Noting) -> None:
    cloud = MemoryCloud()
    cloud.before["create_volume"].append(raising(KeyError("a bug")))
    services = {
        "Controller": ControllerService(MemoryProvider(cloud), ("memory",)),
        "Identity": IdentityService(can_expand=True),
    }
    modify = csi_pb2.ControllerModifyVolumeRequest(volume_id="x")
    with serving(services, observer=noting) as client:
        with refused(grpc.StatusCode.ABORTED):
            client.create()
        client.create()
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            client.delete("")
        client.identity.Probe(csi_pb2.ProbeRequest(), timeout=60)
        with refused(grpc.StatusCode.UNIMPLEMENTED):
            client.controller.ControllerModifyVolume(modify, timeout=60)
    assert noting.ended[:4] == [
        ("Controller/CreateVolume", "ABORTED"),
        ("Controller/CreateVolume", "OK"),
        ("Controller/DeleteVolume", "INVALID_ARGUMENT"),
        ("Identity/Probe", "OK"),
    ]
    assert [method for method, _code in noting.ended] == noting.began
    assert all(0 <= seconds < 60 for seconds in noting.seconds)


def test_calls_of_ec2_are_told_with_codes_throttling_retries_batches_and_waits(noting: Noting) -> None:
    cloud = Cloud()
    cloud.faults["CreateVolume"] = [Fault.THROTTLED, Fault.LOST_REQUEST, Fault.SERVER_ERROR]
    with Ec2Server(cloud) as server:
        provider = AwsProvider(SETTINGS, clients_of(server.url))
        with serving({"Controller": ControllerService(provider, ("aws",))}) as client:
            volume = client.create(timeout=30)
            client.delete(volume.volume_id)
    creations = [outcome for operation, outcome in noting.calls if operation == "CreateVolume"]
    assert creations[0] == Outcome("RequestLimitExceeded", throttled=True)
    assert [outcome.code for outcome in creations] == ["RequestLimitExceeded", "NoAnswer", "NoAnswer", "OK"]
    assert noting.repeated == 3 * ["CreateVolume"]
    assert ("volumes-by-name", 1) in noting.batches
    assert {"turn", "volume-visible", "volume-usable", "deletion-visible"} <= noting.waits.keys()
    assert sum(cloud.calls.values()) == len(noting.calls)
    assert not +noting.open_calls


def test_requests_to_azure_are_told_with_codes_throttling_and_retries(noting: Noting) -> None:
    rig = Rig(ArmCloud(operation_looks=2))
    rig.cloud.faults += [
        ArmFault(method("GET"), before=throttled(0)),
        ArmFault(method("PUT"), before=Dropped),
    ]
    provider = rig.provider()
    volume = create_disk(provider)
    provider.list_volumes(0, "", soon())
    provider.delete_volume(volume.handle, soon())
    codes: dict[str, list[Outcome]] = {}
    for operation, outcome in noting.calls:
        codes.setdefault(operation, []).append(outcome)
    assert codes["disks.get"][0] == Outcome("429", throttled=True)
    assert codes["disks.get"][1] == Outcome("404")
    assert [outcome.code for outcome in codes["disks.put"]] == ["NoAnswer", "OK"]
    assert codes["disks.list"] == codes["disks.delete"] == [Outcome("OK")]
    assert set(codes["operation.get"]) == {Outcome("OK")}
    assert noting.repeated == ["disks.get", "disks.put"]
    assert {"disks.put", "disks.delete"} <= noting.waits.keys()
    assert not +noting.open_calls


@pytest.mark.parametrize(
    ("verb", "url", "operation"),
    [
        ("GET", f"{_GROUP}/disks/csi-vol-1?api-version=x", "disks.get"),
        ("GET", f"{_GROUP}/disks?api-version=x", "disks.list"),
        ("PATCH", f"{_GROUP}/Snapshots/one".replace("Microsoft", "microsoft"), "snapshots.patch"),
        (
            "GET",
            "https://x/subscriptions/s/providers/Microsoft.Compute/locations/l/DiskOperations/o",
            "operation.get",
        ),
    ],
)
def test_operations_of_azure_have_no_names_in_them(verb: str, url: str, operation: str) -> None:
    assert operation_of(verb, url) == operation


def test_calls_of_libvirt_are_told_by_what_the_provider_does(noting: Noting, tmp_path: Path) -> None:
    backend = LibvirtBackend(tmp_path)
    provider = backend.connect()
    with backend.unreachable(), pytest.raises(UnavailableError):
        provider.list_volumes(0, "", soon())
    provider.list_volumes(0, "", soon())
    assert noting.calls == [("list_volumes", Outcome("UnavailableError")), ("list_volumes", Outcome("OK"))]
    assert "connection" in noting.waits


def test_records_that_are_written_and_removed_or_not_are_counted(node: Worker) -> None:
    volumes = DirectVolumes(node.root)
    metrics = NodeMetrics(lambda: len(volumes.target_paths()))
    volumes = DirectVolumes(node.root, metrics)
    info = MountInfo(device="disk-1", fs_type="ext4", metadata={}, options=())
    volumes.write("/t", info)
    (node.root / directory_name("/t") / "foreign").mkdir()
    with pytest.raises(Internal):
        volumes.remove("/t")
    (node.root / directory_name("/t") / "foreign").rmdir()
    volumes.remove("/t")
    volumes.write("/u", info)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"confidential_csi_mountinfo_{name}", labels)

    assert value("writes_total", result="done") == 2
    assert value("removals_total", result="done") == 1
    assert value("removals_total", result="failed") == 1
    assert value("records") == 1


def test_what_alerts_ask_for_is_shown_before_the_first_call(node: Worker) -> None:
    """A first error that Prometheus never saw as 0 is no increase, and would not be told."""
    metrics = NodeMetrics(int)
    alerts = (Path(__file__).parents[3] / "deploy" / "monitoring" / "alerts.yaml").read_text()
    codes = set(re.findall(r'increase\(confidential_csi_rpc_duration_seconds_count\{code="(\w+)"', alerts))
    target = node.target()
    (node.record(target) / "foreign").mkdir(parents=True)
    services = {"Identity": IdentityService(can_expand=True), "Node": node.start()}
    with serving(services, observer=metrics) as client:
        shown = {
            (sample.labels["method"], sample.labels["code"]): sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == "confidential_csi_rpc_duration_seconds_count"
        }
        unpublish = csi_pb2.NodeUnpublishVolumeRequest(volume_id="x", target_path=target)
        with refused(grpc.StatusCode.INTERNAL):
            csi_pb2_grpc.NodeStub(client.channel).NodeUnpublishVolume(unpublish, timeout=10)
    methods = {"Identity/Probe", "Node/NodePublishVolume", "Node/NodeUnpublishVolume", "Node/NodeGetInfo"}
    assert {"INTERNAL", "RESOURCE_EXHAUSTED"} == codes == {code for _, code in shown}
    assert methods < {method for method, _ in shown}
    assert set(shown.values()) == {0}
    labels = {"method": "Node/NodeUnpublishVolume", "code": "INTERNAL"}
    name = "confidential_csi_rpc_duration_seconds_count"
    assert metrics.registry.get_sample_value(name, labels) == 1


def test_an_observer_of_a_process_can_be_changed_and_silenced() -> None:
    first, second = Noting(), Noting()
    for one in (first, second):
        observe(one)
        with observation.call("Something", lambda _error: Outcome("bad")):
            pass
        with pytest.raises(KeyError), observation.call("Something", lambda _error: Outcome("bad")):
            raise KeyError
    assert first.calls == second.calls == [("Something", Outcome("OK")), ("Something", Outcome("bad"))]
