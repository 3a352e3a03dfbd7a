"""The rooms of lint that a corpus of whole files shows only in part."""

from __future__ import annotations

import base64
import copy
import gzip
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import cli
from cli.lint import helm_values
from cli.lint.check import check_sources
from cli.lint.context import Context
from cli.lint.located import Block
from cli.lint.nearest_object import NearestObject
from cli.lint.runtime_classes import is_peer_pod
from cli.lint.sources import Source
from cli.lint.toml_lines import line_of
from cli.lint.yaml_reader import read_documents
from cli.quantity import parse_bytes, rounded, shown
from driver.errors import InvalidArgument
from driver.parameters import parse_parameters
from tests.lint.test_corpus import CLOUDS, FILES

_TOP = Path(cli.__file__).parents[1]
_VALUES: dict[str, Any] = yaml.safe_load(
    (_TOP / "deploy" / "charts" / "confidential-csi" / "values.yaml").read_text()
)


def check(text: str, name: str = "file.yaml") -> list[tuple[int, str]]:
    context = Context(CLOUDS)
    check_sources(context, [Source(name, text.encode(), is_named=True)])
    return sorted((one.place.line, str(one.rule.id)) for one in context.report.findings)


def values(text: str) -> Block | None:
    (document,) = read_documents(text.encode(), "values.yaml", lambda *_: None)
    assert isinstance(document, Block)
    return helm_values.values_of_ours(document)


# Quantities


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10Gi", 10 << 30),
        ("10G", 10 * 10**9),
        ("1.5Gi", 3 << 29),
        (".5Ki", 512),
        ("1e3", 1000),
        ("12E", 12 * 10**18),
        ("1Ei", 1 << 60),
        ("100m", 1),
        ("1073741824", 1 << 30),
        ("+1Ki", 1024),
    ],
)
def test_quantities_of_kubernetes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "10GB", "10 Gi", "-1Gi", "1_000", "\uff11Gi", "Gi", "1gi", "10Gi\n", "1e", "0x10", "1e400"]
)
def test_what_kubernetes_takes_for_no_quantity(text: str) -> None:
    assert parse_bytes(text) is None


@given(st.integers(0, 1 << 70))
def test_a_size_is_shown_exactly(size: int) -> None:
    assert parse_bytes(shown(size)) == size


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1 << 30, "1 GiB"),
        (10**10, "9.3 GiB"),
        (67108864, "64 MiB"),
        (3 << 60, "3 EiB"),
        (1 << 80, "1048576 EiB"),
    ],
)
def test_a_size_is_rounded_for_people(size: int, words: str) -> None:
    assert rounded(size) == words


# The nearest object of a name


def test_the_nearest_object_is_in_the_same_file_then_directory_then_above() -> None:
    objects: NearestObject[str] = NearestObject()
    for file in ("a/x.yaml", "a/b/x.yaml", "a/b/y.yaml", "c/x.yaml"):
        objects.add("name", file, file)
    assert objects.find("name", "a/b/y.yaml") == "a/b/y.yaml"
    assert objects.find("name", "a/b/z.yaml") == "a/b/x.yaml"
    assert objects.find("name", "c/d/e/z.yaml") == "c/x.yaml"
    assert objects.find("name", "-") == "a/x.yaml"
    assert objects.find("name", "/elsewhere/x.yaml") == "a/x.yaml"
    assert objects.find("other", "a/x.yaml") is None


# RuntimeClasses


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kata-remote", True),
        ("kata-remote-tdx", None),
        ("kata", False),
        ("kata-qemu", False),
        ("kata-qemu-snp", False),
        ("kata-cc-isolation", False),
        ("gvisor", False),
        ("nvidia", False),
        ("kata-remotely", None),
        ("confidential", None),
    ],
)
def test_runtime_classes_by_name(name: str, expected: bool | None) -> None:
    assert is_peer_pod(Context(CLOUDS), name, "file") is expected


# Lines of TOML


_TOML = """version = 1   # one
"other-mounts" = [
  "/config",
]
[agent]
measurement = "required"
[volumes."/data"]
key = "a/b/c"
[volumes.'/with.dot']
key = 'd/e/f'
read-only = true
[volumes]
"/inline" = {key = "g/h/i", adopt = true}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("version",), 1),
        (("other-mounts",), 2),
        (("agent", "measurement"), 6),
        (("volumes", "/data"), 7),
        (("volumes", "/data", "key"), 8),
        (("volumes", "/with.dot", "read-only"), 11),
        (("volumes", "/inline", "adopt"), 13),
        (("volumes", "/data", "missing"), 7),
        (("missing",), 1),
    ],
)
def test_the_line_of_a_field_of_toml(path: tuple[str, ...], line: int) -> None:
    assert line_of(_TOML, path) == line


@pytest.mark.parametrize("above", ["# a\u2028b\x0b", "a." * 3000 + "a = 1"])
def test_only_a_line_feed_ends_a_line_of_toml_and_no_key_is_too_deep(above: str) -> None:
    assert line_of(f"{above}\nb = 1", ("b",)) == 2


@given(st.text(max_size=60), st.lists(st.text(max_size=4), max_size=3).map(tuple))
def test_the_line_of_anything_is_one_of_the_text(text: str, path: tuple[str, ...]) -> None:
    assert 1 <= line_of(text, path) <= max(1, len(text.splitlines()))


# Initdata in a pod


def _pod(policy: str) -> str:
    initdata = f"algorithm = \"sha256\"\nversion = \"0.1.0\"\n[data]\n\"volumes.toml\" = '''\n{policy}'''\n"
    assert tomllib.loads(initdata)
    blob = base64.b64encode(gzip.compress(initdata.encode())).decode()
    return (
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations:\n"
        f"    io.katacontainers.config.hypervisor.cc_init_data: {blob}\nspec: {{}}\n"
    )


def test_the_policy_in_a_pod_s_initdata_is_checked() -> None:
    assert check(_pod('version = 1\n[volumes."/data"]\nkey = "a/b/c"\n')) == []
    assert check(_pod('version = 1\n[volumes."/data"]\nkeys = "a/b/c"\n')) == [(6, "policy-invalid")]


# Values of the chart


def test_the_chart_s_own_values_are_known_and_right() -> None:
    text = (_TOP / "deploy" / "charts" / "confidential-csi" / "values.yaml").read_text()
    assert values(text) is not None
    assert check(text, "values.yaml") == []


def test_what_the_chart_has_without_a_value_is_what_lint_believes() -> None:
    assert _VALUES["provider"] == helm_values.DEFAULT_PROVIDER
    classes = _VALUES["storageClasses"]
    assert classes["encrypted"] == {
        "name": helm_values.DEFAULT_ENCRYPTED,
        "keyId": helm_values.DEFAULT_KEY_ID,
    }
    assert classes["plain"] == {"name": helm_values.DEFAULT_PLAIN}


@pytest.mark.parametrize(
    "text",
    [
        "provider: libvirt\nlibvirt: {uri: qemu:///system}\n",
        "provider: aws\naws: {region: eu-central-1}\n",
        "storageClasses: {encrypted: {keyId: a/b/c}}\n",
        "provider: azure\nclusterId: x\n",
        "confidential-csi: {logLevel: info}\n",
    ],
)
def test_values_of_the_chart_are_known_as_such(text: str) -> None:
    assert values(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "provider: aws\naws: {zoneType: public}\ntxtOwnerId: x\n",
        "service: web\nprovider: aws\n",
        "provider: {name: aws}\nfunctions: {}\n",
        "image: {tag: x}\ncontroller: {replicas: 2}\nnode: {}\n",
        "storageClasses: [a, b]\n",
        "storageClass: {create: true}\n",
    ],
)
def test_values_of_other_charts_are_left_alone(text: str) -> None:
    assert values(text) is None
    assert check(text, "values.yaml") == []


@pytest.mark.parametrize(
    "text", ["image: {prefix: registry/}\nprovider: gcp\nclusterID: x\n", "provider: AWS\nclusterID: x\n"]
)
@pytest.mark.parametrize("is_named", [True, False])
def test_a_named_file_that_is_nothing_known_is_said_to_be_unchecked(text: str, is_named: bool) -> None:
    context = Context(CLOUDS)
    check_sources(context, [Source("my-values.yaml", text.encode(), is_named=is_named)])
    assert not context.report.findings
    said = list(context.report.unchecked)
    assert [one.partition(":1: ")[0] for one in said] == ["my-values.yaml"] * is_named


def test_a_value_that_looks_like_a_secret_is_never_in_a_message() -> None:
    context = Context(CLOUDS)
    text = "provider: aws\nclusterId: 5\nlogLevel: hunter2\naws: {roleArn: hunter2, region: [hunter2]}\n"
    check_sources(context, [Source("values.yaml", text.encode(), is_named=True)])
    assert len(context.report.findings) == 4
    assert not [one for one in context.report.findings if "hunter2" in one.message]


# Classes at random: what lint calls clean, the driver's parser accepts, and the other way round

_NAMES = st.sampled_from(
    [
        *("cloudProvider", "encrypt-type", "kbs-key-id", "fsType", "csi.storage.k8s.io/fstype"),
        *("encryptType", "cdhKey", "awsSecretKey", "awsVolumeType", "awsIops", "awsRegion"),
        *("awsAvailabilityZone", "azureDiskSKU", "azureDiskSku", "cloudProviderVolumePath", "type"),
    ]
)
_WORDS = st.sampled_from(
    [
        *(
            "aws",
            "azure",
            "libvirt",
            "local",
            "gcp",
            "luks2",
            "LUKS",
            "luks",
            "default/key/a",
            "kbs:///a/b/c",
        ),
        *("${pvc.namespace}/key/${pvc.name}", "${x}/a/b", "ext4", "gp3", "io2", "3000", "1_000", "eu-west-1"),
        *("eu-west-1a", "Premium_LRS", "/var/lib/volumes", "volumes", "", "true"),
    ]
)


@given(st.dictionaries(_NAMES, _WORDS, max_size=6))
def test_a_class_is_clean_exactly_if_the_driver_parses_it(parameters: dict[str, str]) -> None:
    """Field case L3."""
    manifest = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "a"},
        "provisioner": "caa-csi-block.csi.confidentialcontainers.io",
        "parameters": parameters,
    }
    context = Context(CLOUDS)
    check_sources(context, [Source("a.yaml", yaml.safe_dump(manifest).encode(), is_named=True)])
    errors = {
        one.rule.id
        for one in context.report.findings
        # What the capability, and not a parameter, is refused for.
        if one.rule.severity == "error" and one.rule.id != "file-system"
    }
    known = CLOUDS.known
    rules = context.clouds.rules_for(parameters)
    for provider in [rules] if context.clouds.is_known(rules) else known.values():
        try:
            parse_parameters(parameters, provider, known)
        except InvalidArgument as error:
            assert errors or "fsType" in str(error), (provider.name, str(error))
        else:
            assert not errors, provider.name


# Manifests that nobody wrote: one value of the corpus exchanged for something else


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += _paths(inner, (*path, key))
    return found


def _documents() -> list[Any]:
    found = []
    for path in FILES:
        if path.suffix == ".yaml" and path.parent.name != "yaml":
            found.append(list(yaml.safe_load_all(path.read_text())))
    return found


_DOCUMENTS = _documents()
_ANYTHING: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1.5, "", "x", [], {}, [None], [{}], {"a": None}, [[]], "9" * 5000]
)


@given(st.data())
def test_no_manifest_is_too_odd(data: st.DataObject) -> None:
    documents = copy.deepcopy(data.draw(st.sampled_from(_DOCUMENTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(_paths(documents)))
        parent: Any = documents
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = copy.deepcopy(data.draw(_ANYTHING))
    text = yaml.safe_dump_all(documents)
    context = Context(CLOUDS)
    check_sources(context, [Source("a.yaml", text.encode(), is_named=True)])
    lines = len(text.splitlines())
    assert all(1 <= one.place.line <= lines for one in context.report.findings)
