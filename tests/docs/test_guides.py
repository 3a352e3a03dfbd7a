"""What the guides show is what the chart takes and makes."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml

from deploy.manifests import CHART, KUBE_VERSION
from driver.identity import PLUGIN_NAME
from tests.docs.pages import SHELLS, TOP, blocks
from tests.tools.go_programs import go_program

_PLATFORMS = {"eks": "aws", "aks": "azure", "openshift": "aws", "libvirt-lab": "libvirt"}
_GUIDES = {path.stem: path for path in (TOP / "docs" / "guides").glob("*.md")}
#: Other pages with commands for an installation of the chart.
_PAGES = {
    name: TOP / "docs" / f"{name}.md" for name in ("first-volume", "install", "troubleshooting", "upgrade")
}

every_platform = pytest.mark.parametrize("guide", _PLATFORMS)


@cache
def _rendered(guide: str) -> list[dict[str, Any]]:
    """The chart's objects with the guide's values."""
    (values,) = (block.text for block in blocks(_GUIDES[guide]) if block.title == "values.yaml")
    command = [str(go_program("helm")), "template", "confidential-csi", str(CHART), "--skip-tests"]
    command += [f"--kube-version={KUBE_VERSION}", "--values=-"]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=True, timeout=240)
    return [entry for entry in yaml.safe_load_all(done.stdout) if entry]


def test_each_guide_is_for_a_platform() -> None:
    assert _GUIDES.keys() == _PLATFORMS.keys()


@every_platform
def test_a_guide_has_what_a_reader_looks_for(guide: str) -> None:
    text = _GUIDES[guide].read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Prerequisites",
        "Install",
        "First volume",
        "Verify that it is encrypted",
        "Upgrade, uninstall, migrate",
        "What was tried",
    ]
    for words in ("mode A", "fbdde756", "install.md#images", "kata-remote"):
        assert words in text, words


@every_platform
def test_the_values_of_a_guide_make_its_provider(guide: str) -> None:
    (controller,) = (entry for entry in _rendered(guide) if entry["kind"] == "Deployment")
    driver = controller["spec"]["template"]["spec"]["containers"][0]
    assert f"--provider={_PLATFORMS[guide]}" in driver["args"]
    assert driver["image"].endswith(f"/storage/confidential-csi-controller-{_PLATFORMS[guide]}:0.1.0")


@pytest.mark.parametrize("name", [*_GUIDES, *_PAGES])
def test_names_in_commands_are_those_of_the_chart(name: str) -> None:
    page = {**_GUIDES, **_PAGES}[name]
    made = _rendered(name if name in _PLATFORMS else "eks")
    namespaces = {entry["metadata"]["name"] for entry in made if entry["kind"] == "Namespace"}
    typed = "\n".join(block.text for block in blocks(page) if block.language in SHELLS)
    used = set(re.findall(r"(?:-n|--namespace)[ =]([a-z][a-z-]*)", typed))
    assert used <= namespaces | {"kube-system"}
    accounts = {
        f"system:serviceaccount:{entry['metadata']['namespace']}:{entry['metadata']['name']}"
        for entry in made
        if entry["kind"] == "ServiceAccount"
    }
    text = page.read_text()
    assert set(re.findall(r"system:serviceaccount:[a-z-]+:[a-z-]+", text)) <= accounts
    workloads = {
        f"{entry['kind'].lower()}/{entry['metadata']['name']}"
        for entry in made
        if entry["kind"] in ("Deployment", "DaemonSet")
    }
    assert set(re.findall(r"(?:deployment|daemonset)/[a-z-]+", text)) <= workloads
    names = set(re.findall(r"(?<!topology\.)caa-csi-block\.[a-z.-]*[a-z]", text))
    assert names <= {PLUGIN_NAME}
    files = re.findall(r"(?:file://|--role-definition )(deploy/\S+)", typed)
    assert [file for file in files if not (TOP / file).is_file()] == []
