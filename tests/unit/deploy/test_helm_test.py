"""``helm test``: what it makes, and that it fails where there is no volume, or none that is encrypted."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.deploy.chart import MINIMAL, made_by_helm_test

_PLAIN = 'test.storageClassName="confidential-csi-plain"'
_MAPPING = "/dev/mapper/caa-vol-0 /data ext4 rw,nosuid,nodev,noatime 0 0"


def _claim_and_pod(provider: str, *values: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """In the order in which Helm makes them."""
    claim, pod = sorted(
        made_by_helm_test(provider, *values),
        key=lambda entry: entry["metadata"]["annotations"]["helm.sh/hook-weight"],
    )
    return claim, pod


@pytest.mark.parametrize("provider", sorted(MINIMAL))
def test_it_makes_a_peer_pod_with_a_claim_of_the_encrypted_class(provider: str) -> None:
    claim, pod = _claim_and_pod(provider, 'storageClasses.encrypted.name="own"')
    assert (claim["kind"], pod["kind"]) == ("PersistentVolumeClaim", "Pod")
    assert claim["spec"]["storageClassName"] == "own"
    assert pod["spec"]["runtimeClassName"] == "kata-remote"
    (volume,) = pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [{"name": volume["name"], "mountPath": "/data"}]
    for entry in (claim, pod):
        policy = entry["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded", "a failed one is there to be looked at"


@pytest.mark.parametrize(
    ("mounts", "values", "passes"),
    [
        (_MAPPING, (), True),
        (_MAPPING, (_PLAIN,), True),
        ("/dev/vdb /data ext4 rw 0 0", (_PLAIN,), True),
        ("/dev/vdb /data ext4 rw 0 0", (), False),
        ("/dev/mapper/vg-root /data ext4 rw 0 0", (), False),
        (_MAPPING.replace("/data", "/data2"), (), False),
        (_MAPPING.replace("/data", "/elsewhere"), (_PLAIN,), False),
        ("overlay /data overlay rw 0 0", (_PLAIN,), False),
        ("", (), False),
    ],
)
def test_it_passes_only_with_a_volume_of_its_class(
    tmp_path: Path, mounts: str, values: tuple[str, ...], passes: bool
) -> None:
    _, pod = _claim_and_pod("aws", *values)
    (tmp_path / "mounts").write_text(mounts + "\n")
    (tmp_path / "data").mkdir()
    *shell, script = pod["spec"]["containers"][0]["command"]
    # The machine's own disks need not be written out.
    here = {"/proc/mounts": f"{tmp_path}/mounts", "/data/file": f"{tmp_path}/data/file", "sync;": ":;"}
    for inside, outside in here.items():
        assert inside in script
        script = script.replace(inside, outside)
    done = subprocess.run([*shell, script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) is passes, done
    assert (tmp_path / "data" / "file").exists() is passes
