"""Keys of their own for the volumes of one StorageClass: ``kbs-key-id`` as a template."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import InvalidArgument
from driver.key_path import MAXIMUM_LENGTH, check_key_path, check_key_template, expand_key_path
from driver.key_template import METADATA
from proto import csi_pb2
from tests.fakes.memory_provider import MemoryCloud, MemoryProvider
from tests.unit.driver.node_support import CONTEXT, Worker, publish
from tests.unit.driver.rig import Client, controller, from_snapshot, from_volume, mount, refused

Code = grpc.StatusCode
TEMPLATE = "${pvc.namespace}/volume-key/${pvc.name}"
PREFIX = "csi.storage.k8s.io/"


def parameters(key_id: str = TEMPLATE, *, claim: str = "data", namespace: str = "team") -> dict[str, str]:
    """What the provisioner sends with ``--extra-create-metadata``."""
    return {
        "encrypt-type": "luks2",
        "kbs-key-id": key_id,
        f"{PREFIX}pvc/name": claim,
        f"{PREFIX}pvc/namespace": namespace,
        f"{PREFIX}pv/name": f"pvc-of-{claim}",
    }


def key_of(cloud: MemoryCloud, name: str) -> str:
    (encryption,) = (volume.encryption for volume in cloud.volumes.values() if volume.name == name)
    assert encryption is not None
    return encryption.kbs_key_id


@pytest.mark.parametrize(
    ("key_id", "expanded"),
    [
        (TEMPLATE, "team/volume-key/data"),
        ("default/${pvc.namespace}/${pv.name}", "default/team/pvc-of-data"),
        ("default/key/${pvc.namespace}.${pvc.name}", "default/key/team.data"),
        ("a-${pvc.name}-${pvc.name}/b/c", "a-data-data/b/c"),
        ("default/key/vol1", "default/key/vol1"),
    ],
)
def test_the_key_is_the_volume_s_own(client: Client, cloud: MemoryCloud, key_id: str, expanded: str) -> None:
    volume = client.create(parameters=parameters(key_id))
    assert key_of(cloud, "pvc-1") == expanded
    assert volume.volume_context["kbs-key-id"] == expanded
    again = client.create(parameters=parameters(key_id))
    assert again.SerializeToString(deterministic=True) == volume.SerializeToString(deterministic=True)
    assert len(cloud.volumes) == 1


def test_a_replay_for_another_claim_is_another_key(client: Client) -> None:
    """What is compared is the expanded key, not the template."""
    client.create(parameters=parameters())
    with refused(Code.ALREADY_EXISTS):
        client.create(parameters=parameters(claim="other"))
    assert client.create(parameters=parameters("team/volume-key/data"))


@pytest.mark.parametrize("name", sorted(METADATA))
def test_missing_metadata_says_how_to_get_it(client: Client, cloud: MemoryCloud, name: str) -> None:
    for lacking in (None, ""):
        given_parameters = parameters(f"default/key/${{{name}}}")
        if lacking is None:
            del given_parameters[PREFIX + METADATA[name]]
        else:
            given_parameters[PREFIX + METADATA[name]] = lacking
        with refused(Code.INVALID_ARGUMENT) as refusal:
            client.create(parameters=given_parameters)
        assert "--extra-create-metadata" in refusal.message
    assert not cloud.calls


@pytest.mark.parametrize(
    "key_id",
    [
        "default/key/${pvc.uid}",
        "default/key/${PVC.name}",
        "default/key/${}",
        "default/key/${pvc.name",
        "default/key/$pvc.name",
        "default/key/$${pvc.name}",
        "default/key/${${pvc.name}}",
        "default/key/{pvc.name}",
        "default/${pvc.name}",
        "a/b/${pvc.namespace}/${pvc.name}",
        "default/key/.${pvc.name}",
        "kbs:///default/key/${pvc.name}",
        "${pvc.name}",
        "default/key/${pvc.name}\n",
    ],
)
def test_a_template_that_fits_no_volume_is_refused(client: Client, cloud: MemoryCloud, key_id: str) -> None:
    """Field case J1."""
    with refused(Code.INVALID_ARGUMENT) as refusal:
        client.create(parameters=parameters(key_id))
    assert "kbs-key-id" in refusal.message
    with refused(Code.INVALID_ARGUMENT):
        client.controller.GetCapacity(csi_pb2.GetCapacityRequest(parameters=parameters(key_id)), timeout=60)
    assert not cloud.calls


@pytest.mark.parametrize(
    "claim", ["..", ".hidden", "a/b", "${pvc.name}", "${pv.name}", "a b", "\u03b1", "x\n", "n" * 254]
)
def test_metadata_that_is_no_segment_is_refused(client: Client, cloud: MemoryCloud, claim: str) -> None:
    """Whoever names a claim must not choose another repository, or another claim's key, by it."""
    with refused(Code.INVALID_ARGUMENT):
        client.create(parameters=parameters("default/key/${pvc.name}", claim=claim))
    assert not cloud.calls


@given(
    st.sampled_from(
        [TEMPLATE, "r/${pvc.namespace}/${pvc.name}", "r/t/${pvc.namespace}.${pvc.name}-${pv.name}"]
    ),
    st.fixed_dictionaries({name: st.text(max_size=80) for name in METADATA.values()}),
)
def test_whatever_the_metadata_the_key_is_a_path_of_three_segments(
    template: str, metadata: dict[str, str]
) -> None:
    check_key_template(template)
    try:
        expanded = expand_key_path(template, metadata)
    except InvalidArgument as error:
        assert len(str(error).encode()) < 990
        return
    check_key_path(expanded)
    assert expanded.count("/") == 2
    assert len(expanded) <= MAXIMUM_LENGTH


def test_capacity_is_told_before_a_claim_is_known(client: Client) -> None:
    """The provisioner asks with the class's parameters alone."""
    request = csi_pb2.GetCapacityRequest(parameters={"encrypt-type": "luks2", "kbs-key-id": TEMPLATE})
    assert client.controller.GetCapacity(request, timeout=60).available_capacity


@pytest.mark.parametrize("kind", ["snapshot", "volume"])
def test_a_copy_has_the_key_of_its_source(cloud: MemoryCloud, kind: str) -> None:
    """Field case E5: the copied header opens with the source's key; and so again by a controller that
    finds neither source nor snapshot any more (field case E3)."""
    copy = parameters(claim="restored")
    with controller(MemoryProvider(cloud)) as first:
        source = first.create("source", parameters=parameters())
        snapshot = first.snapshot("s1", source.volume_id)
        content = from_volume(source.volume_id) if kind == "volume" else from_snapshot(snapshot.snapshot_id)
        answer = first.create("copy", parameters=copy, source=content)
        assert key_of(cloud, "copy") == "team/volume-key/data"
        assert answer.volume_context["kbs-key-id"] == "team/volume-key/data"
        of_copy = first.create("copy2", parameters=copy, source=from_volume(answer.volume_id))
        assert of_copy.volume_context["kbs-key-id"] == "team/volume-key/data"
    with controller(MemoryProvider(cloud)) as second:
        second.delete_snapshot(snapshot.snapshot_id)
        second.delete(source.volume_id)
        again = second.create("copy", parameters=copy, source=content)
        assert again.SerializeToString(deterministic=True) == answer.SerializeToString(deterministic=True)
        with refused(Code.ALREADY_EXISTS):
            second.create("copy", parameters=copy)


def test_a_copy_with_another_literal_key_or_of_a_plain_source_is_refused(
    client: Client, cloud: MemoryCloud
) -> None:
    """Field case E5."""
    source = client.create("source", parameters=parameters())
    plain = client.create("plain")
    for volume, wanted in (
        (source, parameters("default/key/other")),
        (source, {}),
        (source, parameters() | {"encrypt-type": "luks"}),
        (plain, parameters()),
        (plain, parameters("default/key/other")),
    ):
        with refused(Code.INVALID_ARGUMENT):
            client.create("copy", parameters=wanted, source=from_volume(volume.volume_id))
    assert len(cloud.volumes) == 2


def test_validation_compares_with_the_volume_s_own_key(client: Client) -> None:
    source = client.create("source", parameters=parameters())
    copy = client.create("copy", parameters=parameters(claim="c"), source=from_volume(source.volume_id))
    for volume, claim, confirmed in (
        (source, "data", True),
        (source, "other", False),
        (copy, "c", True),
    ):
        request = csi_pb2.ValidateVolumeCapabilitiesRequest(
            volume_id=volume.volume_id, volume_capabilities=[mount()], parameters=parameters(claim=claim)
        )
        answer = client.controller.ValidateVolumeCapabilities(request, timeout=60)
        assert answer.HasField("confirmed") is confirmed


def test_a_volume_s_context_never_holds_a_template(node: Worker) -> None:
    """The guest would ask the broker for ``${…}``; a hand-made PersistentVolume is refused instead."""
    with pytest.raises(InvalidArgument, match="kbs-key-id"):
        publish(node.start(), node.target(), context={**CONTEXT, "kbs-key-id": TEMPLATE})
