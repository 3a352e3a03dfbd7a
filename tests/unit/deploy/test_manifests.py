"""The plain manifests and the table of rights are what the chart renders."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agent.policy import Encryption, Policy
from agent.policy_schema import parse_policy
from deploy import security_table
from deploy.manifests import DEPLOY, REQUIRED, SECURITY_PAGE, Differs, manifests, render
from tests.tools.go_programs import go_program


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return {provider: render(go_program("helm"), provider) for provider in REQUIRED}


def test_committed_manifests_are_what_the_chart_renders(rendered: dict[str, str]) -> None:
    """If this fails: make manifests."""
    committed = {path.name: path.read_text() for path in DEPLOY.glob("*.yaml")}
    assert committed == manifests(rendered)


def test_they_have_the_names_that_users_of_the_older_driver_know(rendered: dict[str, str]) -> None:
    names = {"namespace.yaml", "rbac.yaml", "csi-driver.yaml"}
    for cloud in REQUIRED:
        names |= {f"controller-{cloud}.yaml", f"daemonset-{cloud}.yaml"}
        names |= {f"storageclass-{cloud}.yaml", f"storageclass-{cloud}-encrypted.yaml"}
    assert names <= set(manifests(rendered))


def test_every_object_is_in_one_manifest(rendered: dict[str, str]) -> None:
    for provider, text in rendered.items():
        shared = {"rbac.yaml": provider != "libvirt", "rbac-libvirt.yaml": provider == "libvirt"}
        others = set(REQUIRED) - {provider}
        found = []
        for path in DEPLOY.glob("*.yaml"):
            if shared.get(path.name, not any(f"-{other}" in path.name for other in others)):
                found += [entry for entry in yaml.safe_load_all(path.read_text()) if entry]
        wanted = [entry for entry in yaml.safe_load_all(text) if entry]
        assert sorted(map(str, found)) == sorted(map(str, wanted))


def test_clouds_that_share_a_manifest_render_it_alike(rendered: dict[str, str]) -> None:
    odd = rendered["azure"].replace("podInfoOnMount: true", "podInfoOnMount: false")
    with pytest.raises(Differs, match=r"csi-driver\.yaml"):
        manifests({**rendered, "azure": odd})


def test_the_table_of_rights_is_made_from_them(rendered: dict[str, str]) -> None:
    """If this fails: make manifests."""
    page = Path(SECURITY_PAGE).read_text()
    assert security_table.replaced(page, rendered) == page


def test_a_right_without_a_reason_is_an_error(rendered: dict[str, str]) -> None:
    more = rendered["aws"].replace(
        "resources: [persistentvolumes]", "resources: [persistentvolumes, secrets]", 1
    )
    assert more != rendered["aws"]
    with pytest.raises(KeyError, match="secrets"):
        security_table.replaced(SECURITY_PAGE.read_text(), {"aws": more})


def test_a_capability_that_the_table_does_not_show_is_an_error(rendered: dict[str, str]) -> None:
    more = rendered["aws"].replace("drop: [ALL]", "drop: [ALL]\n              add: [SYS_ADMIN]", 1)
    assert more != rendered["aws"]
    with pytest.raises(ValueError, match="capabilities"):
        security_table.replaced(SECURITY_PAGE.read_text(), {"aws": more})


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("daemonset-*.yaml")), ids=lambda path: path.name)
def test_each_exception_from_pod_security_has_its_reason_in_a_comment_above_it(path: Path) -> None:
    """It is root, and has directories of the host; test_chart_rights.py knows of no other."""
    lines = path.read_text().splitlines()
    volumes = [number - 1 for number, line in enumerate(lines) if line.lstrip().startswith("hostPath:")]
    root = [number - 1 for number, line in enumerate(lines) if line.strip() == "runAsUser: 0"]
    assert (len(volumes), len(root)) == (5, 1)
    bare = [lines[number] for number in volumes + root if not lines[number - 1].lstrip().startswith("# ")]
    assert bare == []


def test_the_namespace_that_is_excepted_says_why() -> None:
    documents = (DEPLOY / "namespace.yaml").read_text().split("---\n")
    (excepted,) = (one for one in documents if "enforce: privileged" in one)
    assert excepted.startswith("# ")


@pytest.mark.parametrize("cloud", REQUIRED)
def test_a_class_of_plain_volumes_shows_the_policy_that_they_need(cloud: str) -> None:
    text = (DEPLOY / f"storageclass-{cloud}.yaml").read_text()
    comment = [
        line.removeprefix("#").removeprefix("   ") for line in text.splitlines() if line.startswith("#")
    ]
    shown = comment[comment.index("version = 1") :]
    policy = parse_policy("\n".join(shown))
    assert isinstance(policy, Policy)
    assert policy.volumes is not None
    assert {rules.encryption for rules in policy.volumes.values()} == {Encryption.NONE}
    parameters = yaml.safe_load(text)["parameters"]
    assert not {"encrypt-type", "kbs-key-id"} & set(parameters)
