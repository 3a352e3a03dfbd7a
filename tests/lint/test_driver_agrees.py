"""Lint and the driver never disagree: the corpus through both, the driver's own RPC over its socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import grpc
import pytest

from cli.lint.capabilities import why_no_access_mode
from cli.lint.cluster import Belongs, Claim
from cli.lint.context import Context
from cli.lint.located import Block, Manifest, block_at, items_at, text_at
from cli.lint.rules import RULES, Severity
from cli.lint.storage_classes import class_facts
from cli.pod_policy import DRIVER
from cli.quantity import parse_bytes
from driver.problems import ProblemKind
from driver.topology import ZONE_KEY
from proto import csi_pb2
from providers.interface import StorageClassRules
from providers.registry import installed_class_rules
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider
from tests.lint.test_corpus import FILES, checked
from tests.unit.driver.rig import Client, controller

_Mode = csi_pb2.VolumeCapability.AccessMode
_MODES = {
    "ReadWriteOnce": _Mode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_SINGLE_WRITER,
    "ReadOnlyMany": _Mode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": _Mode.MULTI_NODE_MULTI_WRITER,
}
#: What Kubernetes and its provisioner refuse, so that the driver never sees it.
_BEFORE_THE_DRIVER = {"parameter-not-string", "reserved-parameter", "size-invalid", "manifest-malformed"}


@pytest.fixture(scope="module")
def clouds() -> Iterator[dict[str, Client]]:
    """A controller for each cloud: its own rules for classes, above a cloud in memory."""
    rules = installed_class_rules()
    with ExitStack() as opened:
        yield {name: opened.enter_context(_controller(name, rules)) for name in sorted(rules)}


def _controller(name: str, rules: Mapping[str, StorageClassRules]) -> AbstractContextManager[Client]:
    provider = type(f"Memory{name}", (type(rules[name]), MemoryProvider), {})(MemoryCloud())
    return controller(provider, tuple(rules))


def _classes(context: Context) -> list[Manifest]:
    return [one for one in context.cluster.all("StorageClass") if one.body.get("provisioner") == DRIVER]


def _errors(context: Context, subject: str) -> set[str]:
    return {
        str(one.rule.id)
        for one in context.report.findings
        if one.subject == subject and one.rule.severity is Severity.ERROR
    }


def _is_malformed(context: Context) -> bool:
    return any(one.rule.id == "manifest-malformed" for one in context.report.findings)


def _names_two_file_systems(storage_class: Manifest) -> bool:
    """external-provisioner refuses it."""
    keys = [key.lower().rpartition("/")[2] for key in block_at(storage_class.body, "parameters")]
    return keys.count("fstype") > 1


def _request(
    context: Context, storage_class: Manifest, claim: Claim | None, name: str
) -> csi_pb2.CreateVolumeRequest:
    """What external-provisioner makes of a class and a claim, with --extra-create-metadata."""
    facts = class_facts(context, storage_class)
    spec = Block(0, "") if claim is None else claim.spec
    own = {key: value for key, value in facts.parameters.items() if not key.startswith("csi.storage.k8s.io/")}
    metadata = {"pvc/name": "data", "pvc/namespace": "team", "pv/name": name}
    modes = list(items_at(spec, "accessModes")) or ["ReadWriteOnce"]
    flags = [str(option) for option in items_at(storage_class.body, "mountOptions")]
    request = csi_pb2.CreateVolumeRequest(
        name=name,
        parameters=own | {f"csi.storage.k8s.io/{key}": value for key, value in metadata.items()},
    )
    for mode in modes:
        capability = request.volume_capabilities.add()
        capability.access_mode.mode = _MODES.get(str(mode), _Mode.UNKNOWN)
        if text_at(spec, "volumeMode") == "Block":
            capability.block.SetInParent()
        else:
            capability.mount.fs_type = facts.fs_type
            capability.mount.mount_flags.extend(flags)
    size = parse_bytes(str(block_at(spec, "resources", "requests").get("storage", "128Gi")))
    request.capacity_range.required_bytes = size or 0
    return request


def _refusal(
    clouds: dict[str, Client], context: Context, request: csi_pb2.CreateVolumeRequest, storage_class: Manifest
) -> str:
    """Why the driver refuses it; empty if it makes the volume. A class of no known cloud goes to each."""
    rules = class_facts(context, storage_class).rules
    for name in [rules.name] if rules.name in clouds else clouds:
        try:
            made = clouds[name].controller.CreateVolume(request, timeout=30).volume
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE), error
            return f"{name}: {error.details()}"
        assert made.capacity_bytes >= request.capacity_range.required_bytes
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_class_is_clean_exactly_if_the_driver_takes_it(path: Path, clouds: dict[str, Client]) -> None:
    context = checked(str(path))
    for number, one in enumerate(_classes(context)):
        if _is_malformed(context) or _names_two_file_systems(one):
            continue
        refusal = _refusal(clouds, context, _request(context, one, None, f"{path.stem}-{number}"), one)
        found = _errors(context, one.subject) - _BEFORE_THE_DRIVER - {"topology-key"}
        # In files with values of the chart, the class's findings are also the file's.
        assert bool(refusal) == bool(found), (refusal, found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_claim_is_clean_exactly_if_the_driver_makes_it(path: Path, clouds: dict[str, Client]) -> None:
    context = checked(str(path))
    if _is_malformed(context):
        return
    for number, claim in enumerate(context.cluster.claims):
        storage_class = context.cluster.class_of(claim)
        found = _errors(context, claim.manifest.subject)
        if (
            storage_class is None
            or context.cluster.belongs(claim) is not Belongs.OURS
            or _errors(context, storage_class.subject)
            or found & _BEFORE_THE_DRIVER
        ):
            continue
        request = _request(context, storage_class, claim, f"claim-{path.stem}-{number}")
        refusal = _refusal(clouds, context, request, storage_class)
        asked = {rule for rule in found if rule in ("access-mode", "volume-mode", "size-out-of-range")}
        if not items_at(claim.spec, "accessModes"):
            continue  # the API server's to refuse
        assert bool(refusal) == bool(asked), (claim.manifest.subject, refusal, found)


def test_a_rounded_size_is_what_the_driver_makes(clouds: dict[str, Client]) -> None:
    """Field case A5."""
    rounded = 0
    for path in FILES:
        context = checked(str(path))
        warned = {
            (one.place.line, one.subject) for one in context.report.findings if one.rule.id == "size-rounded"
        }
        for number, claim in enumerate(context.cluster.claims):
            storage_class = context.cluster.class_of(claim)
            line = claim.spec.line_of("resources", "requests", "storage")
            if storage_class is None or (line, claim.manifest.subject) not in warned:
                continue
            request = _request(context, storage_class, claim, f"size-{path.stem}-{number}")
            del request.volume_capabilities[1:]
            request.volume_capabilities[0].access_mode.mode = _Mode.SINGLE_NODE_WRITER
            name = class_facts(context, storage_class).rules.name
            made = clouds[name].controller.CreateVolume(request, timeout=30).volume
            messages = [
                one.message
                for one in context.report.findings
                if one.rule.id == "size-rounded" and one.place.line == line
            ]
            assert made.capacity_bytes != request.capacity_range.required_bytes
            assert [parse_bytes(one.split(" becomes ")[1].split(":")[0]) for one in messages] == [
                made.capacity_bytes
            ]
            rounded += 1
    assert rounded >= 4


def test_each_kind_of_problem_that_the_driver_finds_is_a_rule() -> None:
    assert {str(kind) for kind in ProblemKind} <= set(RULES)


def test_access_modes_are_those_of_the_driver() -> None:
    assert [mode for mode in _MODES if why_no_access_mode(mode) is None] == [
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ]


def test_the_zone_s_key_is_the_driver_s() -> None:
    assert ZONE_KEY in RULES["topology-key"].fix
