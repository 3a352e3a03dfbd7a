"""The chart's admission policies, on a real API server, refuse what the driver refuses and nothing else."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import tests
from driver.capabilities import DEFAULT_FS_TYPE, HONORED_MOUNT_FLAGS, SUPPORTED_FS_TYPES, check_capability
from driver.encryption import checked_encryption
from driver.errors import InvalidArgument
from driver.identity import PLUGIN_NAME
from driver.parameters import CLOUD_PARAMETERS, parse_parameters
from proto import csi_pb2
from providers.aws import AwsProvider
from providers.azure import AzureProvider
from providers.errors import InvalidParameterError
from providers.interface import BlockVolumeProvider
from providers.libvirt import LibvirtProvider
from providers.local import LocalProvider
from tests.cluster.api import Api, Object, Refused, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs import Programs
from tests.unit.deploy.chart import rendered

_VECTORS = json.loads((Path(tests.__file__).parent / "vectors" / "key_paths.json").read_text())
_DENIED = "denied request: "
_ENCRYPTED = {"encrypt-type": "luks2", "kbs-key-id": "default/key/1"}
_UUID = "11111111-2222-3333-4444-555555555555"

#: As external-provisioner, external-attacher and kubelet tell the driver of a claim's or a volume's modes.
_Mode = csi_pb2.VolumeCapability.AccessMode
_MODES = {
    "ReadWriteOnce": _Mode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": _Mode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": _Mode.MULTI_NODE_MULTI_WRITER,
}


def _policies(provider: str) -> list[Object]:
    documents = yaml.safe_load_all(rendered(provider, 'admissionPolicies.moreStorageClasses=["by-hand"]'))
    found = [entry for entry in documents if entry and "ValidatingAdmissionPolicy" in entry["kind"]]
    assert len(found) == 6
    return found


class Admission:
    """A control plane whose API server has the policies of one provider in force."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster
        self._provider = ""

    def of(self, provider: str) -> Api:
        """The API server, once it has noticed the policies of ``provider``."""
        if provider != self._provider:
            self._cluster.apply(yaml.safe_dump_all(_policies(provider)))
            until(lambda: self._is_in_force(provider), what=f"the policies of {provider} are in force")
            self._provider = provider
        return self._cluster.api

    def none(self) -> Api:
        """The API server without them."""
        for policy in _policies("aws"):
            self._cluster.kubectl("delete", policy["kind"], policy["metadata"]["name"], "--ignore-not-found")
        api, self._provider = self._cluster.api, ""
        until(lambda: _refusal(api, _class({"x": "y"})) is None, what="no policy for classes is in force")
        until(lambda: _refusal(api, _volume({}, mountOptions=["sync"])) is None, what="none for volumes is")
        return api

    def _is_in_force(self, provider: str) -> bool:
        api = self._cluster.api
        return (
            _refusal(api, _class({"cloudProvider": provider})) is None
            and _refusal(api, _class({"cloudProvider": "none"})) is not None
            and _refusal(api, _volume({}, mountOptions=["sync"])) is not None
            and _refusal(api, _claim("by-hand", volumeMode="Block")) is not None
        )


@pytest.fixture(scope="module")
def admission(kubernetes: Programs) -> Iterator[Admission]:
    """On a control plane of this module's own: policies are in force for everybody."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ControlPlane(kubernetes, Path(folder)) as own:
        yield Admission(own)


@pytest.fixture
def aws(admission: Admission) -> Api:
    """The API server with the policies for AWS."""
    return admission.of("aws")


def _class(parameters: Mapping[str, str], name: str = "tried", **more: Any) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": PLUGIN_NAME,
        "parameters": dict(parameters),
        **more,
    }


def _volume(attributes: Mapping[str, str], fs_type: str = "", name: str = "tried", **more: Any) -> Object:
    source = {"driver": PLUGIN_NAME, "volumeHandle": "pvc-1", "volumeAttributes": dict(attributes)}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {**source, **({"fsType": fs_type} if fs_type else {})},
            **more,
        },
    }


def _claim(storage_class: str | None, **more: Any) -> Object:
    named = {} if storage_class is None else {"storageClassName": storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "tried", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **named,
            **more,
        },
    }


_PLURALS = {
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
}


def _refusal(api: Api, manifest: Object) -> str | None:
    """What the policies say to its creation; None if they let it pass. Nothing is created.

    Raises:
        Refused: it was refused, but not by a policy.
    """
    try:
        api.request("POST", _PLURALS[manifest["kind"]], manifest, query={"dryRun": "All"})
    except Refused as refused:
        message: str = json.loads(refused.message)["message"]
        if _DENIED in message:
            return message.partition(_DENIED)[2]
        raise
    return None


def _provider(name: str, folder: Path) -> BlockVolumeProvider:
    if name == "aws":
        return AwsProvider.from_settings({"CONFIDENTIAL_CSI_AWS_REGION": "eu-central-1"})
    if name == "azure":
        return AzureProvider.from_settings(
            {
                "CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID": _UUID,
                "CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP": "group",
            }
        )
    if name == "libvirt":
        return LibvirtProvider.from_settings({"LIBVIRT_URI": "test:///default"})
    return LocalProvider.from_settings({"CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(folder)})


def _capability(fs_type: str, flags: list[str], mode: _Mode.Mode.ValueType) -> csi_pb2.VolumeCapability:
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=flags),
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode),
    )


def _class_refusal(provider: BlockVolumeProvider, manifest: Object) -> str | None:
    """What the driver says to a volume of such a class, asked as external-provisioner asks."""
    parameters = manifest["parameters"]
    try:
        spec = parse_parameters(parameters, provider, ("aws", "azure", "libvirt", "local"))
        fs_type = parameters.get("csi.storage.k8s.io/fstype") or parameters.get("fsType") or DEFAULT_FS_TYPE
        flags = manifest.get("mountOptions", [])
        access = check_capability(
            _capability(fs_type, flags, _Mode.SINGLE_NODE_WRITER), encrypted=spec.encryption is not None
        )
    except (InvalidArgument, InvalidParameterError) as refusal:
        return str(refusal)
    given = parameters.get("fsType")
    return None if given in (None, access.fs_type) else f"fsType is {given!r}, not {access.fs_type!r}"


def _volume_refusal(manifest: Object) -> str | None:
    """What the driver says to a publish of such a volume."""
    spec = manifest["spec"]
    if spec.get("volumeMode") == "Block":
        return "block"
    try:
        encrypted = checked_encryption(spec["csi"]["volumeAttributes"]) is not None
        for mode in spec["accessModes"]:
            capability = _capability(
                spec["csi"].get("fsType", ""), spec.get("mountOptions", []), _MODES[mode]
            )
            check_capability(capability, encrypted=encrypted)
    except InvalidArgument as refusal:
        return str(refusal)
    return None


_FS_TYPE = "csi.storage.k8s.io/fstype"

#: StorageClass parameters to what the refusal says.
_BAD_CLASSES: list[tuple[dict[str, str], str]] = [
    ({"encrypt-type": "luks2"}, "belong together"),
    ({"kbs-key-id": "default/key/1"}, "belong together"),
    ({"Encrypt-Type": "LUKS2", "kbs-key-id": "default/key/1"}, "unknown parameter Encrypt-Type"),
    ({"encryptType": "luks2", "kbs-key-id": "default/key/1"}, "unknown parameter encryptType"),
    ({**_ENCRYPTED, "encrypt-type": "aes"}, "encrypt-type must be luks2"),
    ({**_ENCRYPTED, "encrypt-type": ""}, "encrypt-type must be luks2"),
    ({**_ENCRYPTED, "encrypt-type": " luks2 "}, "encrypt-type must be luks2"),
    ({**_ENCRYPTED, "encrypt-type": "LUKS2"}, "in lower case"),
    ({**_ENCRYPTED, "kbs-key-id": "kbs:///default/key/1"}, "without kbs:///"),
    ({**_ENCRYPTED, "kbs-key-id": "default/key/${pod.name}"}, "only ${pvc.namespace}"),
    ({**_ENCRYPTED, "kbs-key-id": "${pvc.${pv.name}name}/a/b"}, "only ${pvc.namespace}"),
    ({**_ENCRYPTED, "kbs-key-id": "default/${pvc.name}"}, "repository/type/tag"),
    ({**_ENCRYPTED, _FS_TYPE: "xfs"}, "ext4 only"),
    ({**_ENCRYPTED, "fsType": "xfs"}, "ext4 only"),
    ({_FS_TYPE: "btrfs"}, "can be ext4, or xfs"),
    ({"fsType": ""}, "can be ext4, or xfs"),
    ({"fsType": "ext4", _FS_TYPE: "xfs"}, "leave out fsType"),
    ({"cdhEncryptionType": "luks2", "cdhKey": "kbs:///a/b/c"}, "would not be encrypted"),
    ({"cdhkey": "x", **_ENCRYPTED}, "would not be encrypted"),
    ({"awsAccessKeyId": "AKIA", "awsSecretKey": "S3CR3T"}, "looks like a credential"),
    ({"sasToken": "S3CR3T"}, "looks like a credential"),
    ({"private-key": "S3CR3T"}, "looks like a credential"),
    ({"azureDiskSKU": "Premium_LRS"}, "unknown parameter azureDiskSKU"),
    ({"cloudProvider": "azure"}, "runs the provider aws"),
    ({"cloudProvider": ""}, "runs the provider aws"),
    ({"fstype": "ext4"}, "unknown parameter fstype"),
    ({"x" * 100: "1"}, f"unknown parameter {'x' * 64};"),
    ({"line\nbreak": "1"}, "unknown to this driver"),
    ({"awsIops": "1_000"}, "whole number"),
    ({"awsIops": "3e3"}, "whole number"),
    ({"awsIops": "-1"}, "whole number"),
    ({"awsIops": "\uff11\uff10"}, "whole number"),
    ({"awsThroughput": "125\n"}, "whole number"),
    ({"awsKmsKeyId": "\u00e4" * 1100}, "more than 2048 bytes"),
]


@pytest.mark.parametrize(("parameters", "message"), _BAD_CLASSES, ids=str)
def test_a_class_that_could_not_work_or_would_be_in_the_clear_is_refused(
    aws: Api, tmp_path: Path, parameters: dict[str, str], message: str
) -> None:
    """Field cases K3, L2, L3."""
    said = _refusal(aws, _class(parameters))
    assert said is not None
    assert message in said
    assert "S3CR3T" not in said
    assert _class_refusal(_provider("aws", tmp_path), _class(parameters)) is not None


@pytest.mark.parametrize("vector", _VECTORS["refused"], ids=lambda vector: str(vector["why"]))
def test_no_malformed_key_path_passes(aws: Api, vector: dict[str, str]) -> None:
    """Field case J1. Of these, only a class can hold a template."""
    attributes = {**_ENCRYPTED, "kbs-key-id": vector["key_id"]}
    assert "repository/type/tag" in (_refusal(aws, _volume(attributes)) or "")
    if "${pvc.name}" not in vector["key_id"]:
        assert "repository/type/tag" in (_refusal(aws, _class(attributes)) or "")


@pytest.mark.parametrize(
    "key_id",
    [
        *_VECTORS["accepted"],
        "${pvc.namespace}/volume-key/${pvc.name}",
        "default/volume-key/${pvc.namespace}.${pvc.name}",
        "${pv.name}/${pv.name}${pv.name}/-${pvc.name}",
        "default/key/" + "${pvc.namespace}" * 188,
    ],
    ids=lambda key_id: str(key_id)[:40],
)
def test_every_good_key_path_passes(aws: Api, key_id: str) -> None:
    attributes = {**_ENCRYPTED, "kbs-key-id": key_id}
    size = sum(len(text) for pair in attributes.items() for text in pair)
    said = _refusal(aws, _class(attributes))
    assert (said is None) if size <= 2048 else (said is not None and "2048" in said)
    if "${" not in key_id:
        assert _refusal(aws, _volume(attributes)) is None


@pytest.mark.parametrize("provider", ["aws", "azure", "libvirt", "local"])
def test_the_chart_s_own_classes_and_every_parameter_of_the_provider_pass(
    admission: Admission, provider: str, tmp_path: Path
) -> None:
    api = admission.of(provider)
    own = [entry for entry in yaml.safe_load_all(rendered(provider)) if entry]
    classes = [entry for entry in own if entry["kind"] == "StorageClass"]
    assert len(classes) == 2
    for entry in classes:
        assert _refusal(api, entry) is None
    names = _provider(provider, tmp_path).parameter_names
    values = {"awsIops": "3000", "awsThroughput": "125", "azureDiskIops": "3000", "azureDiskMbps": "125"}
    assert _refusal(api, _class({name: values.get(name, "any") for name in names})) is None
    for other in set[str]().union(*CLOUD_PARAMETERS.values()) - names:
        assert f"unknown parameter {other}" in (_refusal(api, _class({other: "1"})) or "")


_WORDS = st.sampled_from(
    [
        "",
        "luks",
        "luks2",
        "LUKS2",
        "ext4",
        "xfs",
        "aws",
        "azure",
        "3000",
        "1_000",
        "true",
        "gp3",
        "io2",
        "Premium_LRS",
    ]
) | st.text(max_size=6)
_SEGMENTS = st.sampled_from(
    ["default", "key", "${pvc.name}", "${pvc.namespace}", "${pv.name}", "${x}", ".", "a.b", ""]
)
_KEYS = st.lists(_SEGMENTS, min_size=1, max_size=5).map("/".join) | st.text(max_size=12)
_NAMES = st.sampled_from(
    sorted(
        {
            "encrypt-type",
            "fsType",
            _FS_TYPE,
            "cloudProvider",
            "csi.storage.k8s.io/other",
            "encryptType",
            "cdhKey",
        }
    )
    + sorted(CLOUD_PARAMETERS["aws"] | CLOUD_PARAMETERS["azure"] | CLOUD_PARAMETERS["libvirt"])
) | st.text(min_size=1, max_size=8)
_OPTIONS = st.lists(st.sampled_from([*sorted(HONORED_MOUNT_FLAGS), "sync", "discard", "RO"]), max_size=3)


@st.composite
def _parameters(draw: st.DrawFn) -> dict[str, str]:
    given: dict[str, str] = draw(st.dictionaries(_NAMES, _WORDS, max_size=2))
    if draw(st.booleans()):
        given |= {"encrypt-type": draw(st.sampled_from(["luks", "luks2"]))}
        given |= {"kbs-key-id": draw(_KEYS)}
    return given


def _many(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``count`` examples; without an explanation, which would ask the API server hundreds of times."""
    return settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@pytest.mark.parametrize("name", ["aws", "azure", "libvirt", "local"])
def test_classes_pass_exactly_if_the_driver_accepts_them(
    admission: Admission, tmp_path: Path, name: str
) -> None:
    """Both ways, but for the values of the clouds' own parameters, most of which only the driver knows."""
    api = admission.of(name)
    provider = _provider(name, tmp_path)

    @_many(150)
    @given(parameters=_parameters(), options=_OPTIONS)
    @example(parameters=dict(_ENCRYPTED), options=["ro"])
    @example(parameters={"fsType": "xfs"}, options=[])
    @example(parameters={"fsType": "ext4", _FS_TYPE: "ext4"}, options=[])
    def compare(parameters: dict[str, str], options: list[str]) -> None:
        manifest = _class(parameters, mountOptions=options)
        said, refused = _refusal(api, manifest), _class_refusal(provider, manifest)
        if not set(parameters) & provider.parameter_names:
            assert (said is None) == (refused is None), (said, refused)
        elif refused is None:
            assert said is None

    compare()


def test_volumes_pass_exactly_if_the_driver_publishes_them(aws: Api) -> None:
    attributes = st.fixed_dictionaries(
        {},
        optional={
            "encrypt-type": st.sampled_from(["luks2", "luks", "LUKS", ""]),
            "kbs-key-id": st.sampled_from(["default/key/1", "a/b", "kbs:///a/b/c", "${pv.name}/b/c"]),
            "cdhKey": st.just("kbs:///a/b/c"),
            "awsSecretKey": st.just("of the older driver, which is dropped"),
            "cloud-volume-path": st.just("vol-0123456789abcdef0"),
        },
    )
    modes = st.lists(st.sampled_from(sorted(_MODES)), min_size=1, max_size=2, unique=True).filter(
        # The API server's own rule.
        lambda chosen: "ReadWriteOncePod" not in chosen or len(chosen) == 1
    )
    fs_types = st.sampled_from(["", *sorted(SUPPORTED_FS_TYPES), "ntfs"])

    @_many(150)
    @given(
        attributes=attributes,
        modes=modes,
        fs_type=fs_types,
        options=_OPTIONS,
        volume_mode=st.sampled_from(["Filesystem", "Filesystem", "Filesystem", "Block"]),
    )
    def compare(
        attributes: dict[str, str], modes: list[str], fs_type: str, options: list[str], volume_mode: str
    ) -> None:
        manifest = _volume(
            attributes, fs_type, accessModes=modes, mountOptions=options, volumeMode=volume_mode
        )
        said, refused = _refusal(aws, manifest), _volume_refusal(manifest)
        assert (said is None) == (refused is None), (said, refused)

    compare()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (_volume({"encrypt-type": "luks2"}), "belong together"),
        (_volume({"kbs-key-id": "default/key/1"}), "belong together"),
        (_volume({}, volumeMode="Block"), "volumeMode Filesystem"),
        (_volume({}, accessModes=["ReadWriteMany"]), "ReadWriteOncePod"),
        (_volume({}, accessModes=["ReadWriteOnce", "ReadOnlyMany"]), "ReadWriteOncePod"),
        (_volume(_ENCRYPTED, "xfs"), "ext4 only"),
        (_volume({}, mountOptions=["noexec"]), "remove the others"),
        (_claim("confidential-csi-encrypted", volumeMode="Block"), "volumeMode Filesystem"),
        (_claim("confidential-csi-plain", accessModes=["ReadWriteMany"]), "ReadWriteOncePod"),
        (_claim("by-hand", accessModes=["ReadOnlyMany"]), "ReadWriteOncePod"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value["spec"])[:60],
)
def test_a_volume_or_claim_that_can_t_be_had_is_refused(aws: Api, manifest: Object, message: str) -> None:
    """Field case K3."""
    assert message in (_refusal(aws, manifest) or "")


def test_a_claim_that_names_a_class_by_the_older_annotation_is_looked_at(aws: Api) -> None:
    claim = _claim(None, volumeMode="Block")
    claim["metadata"]["annotations"] = {"volume.beta.kubernetes.io/storage-class": "by-hand"}
    assert "volumeMode" in (_refusal(aws, claim) or "")


def test_objects_of_other_drivers_are_not_looked_at(aws: Api) -> None:
    odd = {"encrypt-type": "x", "awsSecretKey": "y"}
    assert _refusal(aws, {**_class(odd, mountOptions=["sync"]), "provisioner": "other.example"}) is None
    volume = _volume(odd, "btrfs", volumeMode="Block", accessModes=["ReadWriteMany"])
    volume["spec"]["csi"]["driver"] = "other.example"
    assert _refusal(aws, volume) is None
    del volume["spec"]["csi"]
    volume["spec"] |= {"nfs": {"server": "nfs.example", "path": "/"}, "mountOptions": ["sync"]}
    assert _refusal(aws, volume) is None
    for name in (None, "", "other", "confidential-csi-encrypted-2"):
        assert _refusal(aws, _claim(name, volumeMode="Block", accessModes=["ReadWriteMany"])) is None


def test_the_largest_class_that_the_api_server_takes_is_refused_in_words(aws: Api) -> None:
    """What evaluating the policies costs stays within the API server's budget."""
    large = {f"{number:04d}": "v" * 500 for number in range(500)}
    assert "unknown parameter" in (_refusal(aws, _class(large)) or "")
    assert "2048 bytes" in (_refusal(aws, _class({"awsKmsKeyId": "k" * 250_000})) or "")
    longest = {**_ENCRYPTED, "kbs-key-id": "${pv.name}" * 25_000}
    assert "repository/type/tag" in (_refusal(aws, _class(longest)) or "")
    assert "repository/type/tag" in (_refusal(aws, _volume(longest)) or "")


def test_the_api_server_finds_no_fault_in_the_expressions(aws: Api) -> None:
    names = [entry["metadata"]["name"] for entry in _policies("aws")]
    for name in set(names):
        checked = until(partial(_type_checking, aws, name), what=f"the expressions of {name} are checked")
        assert checked.get("expressionWarnings", []) == []


def _type_checking(api: Api, name: str) -> Object:
    policy = api.request("GET", f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}")
    status: Object = policy.get("status", {})
    seen = status.get("observedGeneration") == policy["metadata"]["generation"]
    # An empty result is left out of what the server stores, but the field is there.
    return {"checked": True, **status.get("typeChecking", {})} if seen else {}


@contextmanager
def _created(api: Api, manifest: Object) -> Iterator[Object]:
    yield api.create(manifest)
    name, kind = manifest["metadata"]["name"], manifest["kind"]
    with_finalizers = api.find(kind, name)
    if with_finalizers is not None and with_finalizers["metadata"].get("finalizers"):
        api.patch(kind, name, {"metadata": {"finalizers": None}})
    api.delete(kind, name)


def test_what_was_there_before_the_policies_can_still_be_changed_and_deleted(admission: Admission) -> None:
    """A label, a new size or a finalizer's removal is not blocked by an object's old faults."""
    api = admission.none()
    old_class = _class({"encrypt-type": "luks2"}, name="old", mountOptions=["sync"])
    old_volume = _volume({"encrypt-type": "luks2"}, name="old", accessModes=["ReadWriteMany"])
    with _created(api, old_class), _created(api, old_volume):
        admission.of("aws")
        assert _refusal(api, {**old_class, "metadata": {"name": "new"}}) is not None
        api.patch("StorageClass", "old", {"metadata": {"labels": {"team": "storage"}}})
        api.patch("PersistentVolume", "old", {"spec": {"capacity": {"storage": "2Gi"}}})
        with pytest.raises(Refused, match="belong together"):
            api.patch("StorageClass", "old", {"mountOptions": ["discard"]})
        with pytest.raises(Refused, match="one PodVM only"):
            api.patch("PersistentVolume", "old", {"spec": {"accessModes": ["ReadOnlyMany"]}})
    assert api.find("StorageClass", "old") is None


def test_claims_of_the_default_class_of_stateful_sets_and_of_pods_are_looked_at(aws: Api) -> None:
    """Field case K3: whoever makes the claim."""
    encrypted = next(
        entry
        for entry in yaml.safe_load_all(rendered("aws"))
        if entry and entry["metadata"]["name"] == "confidential-csi-encrypted"
    )
    encrypted["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    block = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Block",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    labels = {"app": "templates"}
    container = {"name": "main", "image": "none"}
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "templates", "namespace": "default"},
        "spec": {
            "serviceName": "templates",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": block}],
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "ephemeral", "namespace": "default"},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": block}}}],
        },
    }
    with _created(aws, encrypted):
        until(lambda: "volumeMode" in (_refusal(aws, _claim(None, volumeMode="Block")) or ""))
        until(lambda: aws.find("ServiceAccount", "default"), what="pods can be made")
        aws.request("POST", "/apis/apps/v1/namespaces/default/statefulsets", stateful_set)
        aws.create(pod)
        for name in ("templates", "ephemeral"):
            until(partial(_is_told, aws, name), what=f"an event tells the owner of {name}")
        assert aws.list("PersistentVolumeClaim") == []
        aws.request("DELETE", "/apis/apps/v1/namespaces/default/statefulsets/templates")
        aws.delete("Pod", "ephemeral", gracePeriodSeconds="0")


def _is_told(api: Api, name: str) -> bool:
    return any("volumeMode Filesystem" in event for event in api.events(name))
