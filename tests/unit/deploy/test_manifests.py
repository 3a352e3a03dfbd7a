"""The plain manifests and the table of rights are what the chart renders."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

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
