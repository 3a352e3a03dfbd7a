"""What the guides show is what the chart takes and makes."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.policy import Policy
from agent.policy_schema import parse_policy
from deploy.manifests import CHART, KUBE_VERSION
from driver.identity import PLUGIN_NAME
from tests.tools.go_programs import go_program

_TOP = Path(__file__).parents[3]
_GUIDES = {path.stem: path.read_text() for path in (_TOP / "docs" / "guides").glob("*.md")}
_PLATFORMS = {"eks": "aws", "aks": "azure", "openshift": "aws", "libvirt-lab": "libvirt"}
_VALUES = "# values.yaml\n"

every_platform = pytest.mark.parametrize("guide", _PLATFORMS)


def _blocks(guide: str, kind: str) -> list[str]:
    """Fenced blocks, without the indentation that they have in a list."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^\1```$", _GUIDES[guide], re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indentation}", "", text, flags=re.MULTILINE) for indentation, text in found]


def _commands(guide: str) -> list[str]:
    """What is typed in its console blocks, each command in one line."""
    typed = []
    for block in _blocks(guide, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                typed.append(line[2:])
            elif line.startswith("> "):
                typed[-1] += "\n" + line[2:]
    return typed


@cache
def _rendered(guide: str) -> list[dict[str, Any]]:
    """The chart's objects with the guide's values."""
    (values,) = (text for text in _blocks(guide, "yaml") if text.startswith(_VALUES))
    command = [str(go_program("helm")), "template", "confidential-csi", str(CHART), "--skip-tests"]
    command += [f"--kube-version={KUBE_VERSION}", "--values=-"]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=True, timeout=60)
    return [entry for entry in yaml.safe_load_all(done.stdout) if entry]


@every_platform
def test_a_guide_has_what_a_reader_looks_for(guide: str) -> None:
    sections = re.findall(r"^## (.+)$", _GUIDES[guide], re.MULTILINE)
    assert sections == [
        "Prerequisites",
        "Install",
        "First volume",
        "Verify that it is encrypted",
        "Upgrade, uninstall, migrate",
        "What was tried",
    ]
    for words in ("mode A", "fbdde756", "install.md#images", "kata-remote"):
        assert words in _GUIDES[guide], words


@every_platform
def test_the_values_of_a_guide_make_its_provider(guide: str) -> None:
    (controller,) = (entry for entry in _rendered(guide) if entry["kind"] == "Deployment")
    driver = controller["spec"]["template"]["spec"]["containers"][0]
    assert f"--provider={_PLATFORMS[guide]}" in driver["args"]
    assert driver["image"].endswith(f"/storage/confidential-csi-controller-{_PLATFORMS[guide]}:0.1.0")


@pytest.mark.parametrize("guide", _GUIDES)
def test_helm_takes_the_command_of_a_guide(guide: str) -> None:
    (typed,) = (command for command in _commands(guide) if command.startswith("helm "))
    helm, action, release, chart, *arguments = shlex.split(typed)
    assert (helm, action) == ("helm", "upgrade" if guide == "volumes" else "install")
    assert (release, chart) == ("confidential-csi", "deploy/charts/confidential-csi")
    assert (_TOP / chart).samefile(CHART)
    where = arguments.index("--values")
    assert arguments[where + 1] == "values.yaml"
    del arguments[where : where + 2]
    assert arguments == ["--namespace", "kube-system"]


@pytest.mark.parametrize("guide", _GUIDES)
def test_names_in_commands_are_those_of_the_chart(guide: str) -> None:
    made = _rendered(guide if guide in _PLATFORMS else "eks")
    namespaces = {entry["metadata"]["name"] for entry in made if entry["kind"] == "Namespace"}
    text = "\n".join(_commands(guide))
    used = set(re.findall(r"(?:-n|--namespace)[ =]([a-z][a-z-]*)", text))
    assert used <= namespaces | {"kube-system", "shop"}
    accounts = {
        f"system:serviceaccount:{entry['metadata']['namespace']}:{entry['metadata']['name']}"
        for entry in made
        if entry["kind"] == "ServiceAccount"
    }
    assert set(re.findall(r"system:serviceaccount:[a-z-]+:[a-z-]+", _GUIDES[guide])) <= accounts
    workloads = {
        f"{entry['kind'].lower()}/{entry['metadata']['name']}"
        for entry in made
        if entry["kind"] in ("Deployment", "DaemonSet")
    }
    assert set(re.findall(r"(?:deployment|daemonset)/[a-z-]+", text)) <= workloads
    assert set(re.findall(r"caa-csi-block\.[a-z.-]*[a-z]", _GUIDES[guide])) <= {PLUGIN_NAME}
    files = re.findall(r"(?:file://|--role-definition )(deploy/\S+)", text)
    assert [name for name in files if not (_TOP / name).is_file()] == []


@pytest.mark.parametrize("guide", _GUIDES)
def test_manifests_in_a_guide_fit_the_chart_s_objects(guide: str) -> None:
    shown = [text for text in _blocks(guide, "yaml") if not text.startswith(_VALUES)]
    manifests = [entry for text in shown for entry in yaml.safe_load_all(text)]
    assert bool(manifests) is (guide == "volumes")
    for entry in manifests:
        assert {"apiVersion", "kind", "metadata"} <= set(entry)
    if manifests:
        _, claim, pod = manifests
        classes = {
            entry["metadata"]["name"]: entry for entry in _rendered("eks") if entry["kind"] == "StorageClass"
        }
        template = classes[claim["spec"]["storageClassName"]]["parameters"]["kbs-key-id"]
        metadata = claim["metadata"]
        key = template.replace("${pvc.namespace}", metadata["namespace"]).replace(
            "${pvc.name}", metadata["name"]
        )
        (volume,) = pod["spec"]["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == metadata["name"]
        (mount,) = pod["spec"]["containers"][0]["volumeMounts"]
        (policy,) = (parse_policy(text) for text in _blocks(guide, "toml"))
        assert isinstance(policy, Policy)
        assert policy.volumes is not None
        rules = policy.volumes[mount["mountPath"]]
        assert rules.key_id == key
        assert rules.minimum_size == 10 << 30
        assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"


@pytest.mark.parametrize("guide", _GUIDES)
def test_commands_in_a_guide_can_be_typed(guide: str) -> None:
    for command in _commands(guide):
        done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
