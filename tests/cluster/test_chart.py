"""The chart is installed, upgraded and uninstalled with its default values; volumes stay."""

from __future__ import annotations

import json

import pytest

from deploy.manifests import CHART
from tests.cluster.api import Api, until
from tests.cluster.deployments import CONTROLLERS, ENCRYPTED, Deployment
from tests.cluster.release import RELEASE
from tests.cluster.volumes import claim, pod, volume_of

pytestmark = pytest.mark.parametrize("deployment", ["aws"], indirect=True)


def test_an_upgrade_stops_no_volume_and_an_uninstallation_loses_none(
    deployment: Deployment, api: Api
) -> None:
    api.create(claim("data", ENCRYPTED))
    api.create(pod("user", "data"))
    name = volume_of(api, "data")["metadata"]["name"]

    changed = {**deployment.values, "logLevel": "debug", "controller": _with_replicas(deployment, 1)}
    printed = deployment.release.install(changed)
    assert "REVISION: 2" in printed
    assert "kubectl get pods -n confidential-csi" in printed, "the notes say what to do next"
    assert "clusterId is empty" not in printed
    unnamed = {**changed, "clusterId": ""}
    tried = deployment.release.helm("upgrade", RELEASE, str(CHART), "--dry-run=server", values=unnamed)
    assert "WARNING: clusterId is empty" in tried
    until(lambda: _log_levels(deployment) == ["debug"], what="one controller, a new one")
    api.create(claim("after-the-upgrade", ENCRYPTED))
    api.create(pod("other-user", "after-the-upgrade"))
    volume_of(api, "after-the-upgrade")

    deployment.release.uninstall()
    assert not api.find("CSIDriver", "caa-csi-block.csi.confidentialcontainers.io")
    assert not api.find("Namespace", CONTROLLERS)
    assert api.get("PersistentVolume", name)["status"]["phase"] == "Bound"
    assert name in deployment.disks.names()

    deployment.release.install(deployment.values)
    api.create(claim("after-the-installation", ENCRYPTED))
    api.create(pod("third-user", "after-the-installation"))
    volume_of(api, "after-the-installation")


def test_an_upgrade_to_another_provider_is_refused_before_anything_changes(
    deployment: Deployment, api: Api
) -> None:
    """Its StorageClasses are immutable, so half of it would arrive."""
    before = _revision(deployment), api.get("Deployment", "confidential-csi-controller", CONTROLLERS)["spec"]
    azure = {"subscriptionId": "00000000-0000-0000-0000-000000000000", "resourceGroup": "volumes"}
    for values in ({"provider": "azure", "azure": azure}, {"provider": "local", "local": {"claimName": "d"}}):
        for dry_run in ("--dry-run=server", "--dry-run=none"):
            with pytest.raises(AssertionError, match=r"runs with --provider=aws; provider .* uninstall"):
                deployment.release.helm("upgrade", RELEASE, str(CHART), dry_run, values=values)
    after = _revision(deployment), api.get("Deployment", "confidential-csi-controller", CONTROLLERS)["spec"]
    assert after == before


def test_an_upgrade_that_would_delete_the_namespaces_is_refused(deployment: Deployment) -> None:
    values = {**deployment.values, "namespaces": {"create": False}}
    with pytest.raises(AssertionError, match="namespace confidential-csi is this release's"):
        deployment.release.helm("upgrade", RELEASE, str(CHART), "--dry-run=server", values=values)


def _revision(deployment: Deployment) -> tuple[int, str]:
    status = json.loads(deployment.release.helm("status", RELEASE, "--output=json"))
    return status["version"], status["info"]["status"]


def _log_levels(deployment: Deployment) -> list[str]:
    option = "--log-level="
    arguments = (pod["spec"]["containers"][0]["args"] for pod in deployment.controllers())
    return [one.removeprefix(option) for args in arguments for one in args if one.startswith(option)]


def _with_replicas(deployment: Deployment, count: int) -> dict[str, object]:
    controller = deployment.values["controller"]
    assert isinstance(controller, dict)
    return {**controller, "replicas": count}
