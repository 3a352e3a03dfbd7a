"""The story of one volume on a real API server and the strict EC2, by its claim, its id and its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from cli.inspect.story import Story
from cli.inspect.volume import inspect_claim, inspect_record, inspect_volume
from cli.scene import Scene
from driver.direct_volumes import DirectVolumes, directory_name
from driver.mountinfo import MountInfo
from providers.deadline import Deadline
from tests.cluster.api import Object
from tests.cluster.control_plane import ApiServer
from tests.cluster.healthy_cluster import KEY_ID, MACHINE, NODE, Cluster, claim
from tests.cluster.planted import run_with_secrets

TARGET = "/var/lib/kubelet/pods/11111111-2222-3333-4444-555555555555/volumes/kubernetes.io~csi/pvc-1/mount"


@pytest.fixture
def cluster(api_server: ApiServer, tmp_path: Path) -> Cluster:
    made = Cluster(api_server.api, api_server.kubeconfig, tmp_path)
    made.reset()
    return made


@pytest.fixture
def records(tmp_path: Path) -> DirectVolumes:
    root = tmp_path / "direct-volumes"
    root.mkdir()
    return DirectVolumes(root)


def _scene(cluster: Cluster, records: DirectVolumes) -> Scene:
    scene = cluster.scene()
    return replace(scene, paths=replace(scene.paths, direct_volumes=records.root))


def _publish(cluster: Cluster, records: DirectVolumes, key_id: str = KEY_ID) -> Path:
    disk_id = cluster.volume.disk_id
    metadata = {"cloud-volume-path": disk_id, "encrypt-type": "luks2", "kbs-key-id": key_id}
    records.write(TARGET, MountInfo(disk_id, "ext4", metadata))
    return records.root / directory_name(TARGET)


def _section(story: Story, key: str) -> dict[str, Any]:
    return next(dict(section.facts) for section in story.sections if section.key == key)


def test_a_claim_leads_to_everything_that_is_known(cluster: Cluster, records: DirectVolumes) -> None:
    _publish(cluster, records)
    provider: Any = cluster.backend.connect()
    provider.create_snapshot("snap-1", cluster.volume.handle, Deadline.after(30))
    story = inspect_claim("default/ledger", _scene(cluster, records))
    assert (story.alarms, story.remarks, story.unseen) == ([], [], [])
    assert _section(story, "claim")["volume"] == "pvc-1"
    assert _section(story, "persistentVolume")["attribute kbs-key-id"] == KEY_ID
    disk = _section(story, "disk")
    assert disk["disk id"] == cluster.volume.disk_id
    assert disk["attached to"] == MACHINE
    assert disk["published to"] == f"node/{NODE}"
    assert _section(story, "snapshots")["count"] == 1
    assert _section(story, "attachment")["node"] == NODE
    assert "ledger-0" in _section(story, "pods")["pods"][0]
    assert _section(story, "record")["target path"] == TARGET
    assert KEY_ID in story.conclusion


def test_ids_names_and_records_lead_to_the_same_volume(cluster: Cluster, records: DirectVolumes) -> None:
    directory = _publish(cluster, records)
    scene = _scene(cluster, records)
    for story in (
        inspect_volume(f"aws:{cluster.volume.handle}", scene),
        inspect_volume("pvc-1", scene),
        inspect_record(directory, scene),
    ):
        assert _section(story, "persistentVolume")["claim"] == "default/ledger"
        assert _section(story, "disk")["disk id"] == cluster.volume.disk_id
        assert story.alarms == []


def test_different_keys_are_an_alarm(cluster: Cluster, records: DirectVolumes) -> None:
    _publish(cluster, records, "default/volume-key/other")
    story = inspect_claim("default/ledger", _scene(cluster, records))
    assert any("different keys" in alarm for alarm in story.alarms)


def test_a_plaintext_volume_is_an_alarm(cluster: Cluster, records: DirectVolumes) -> None:
    def change(manifest: Object) -> None:
        manifest["spec"]["csi"]["volumeAttributes"] = {"cloudProvider": "aws"}

    cluster.recreate("PersistentVolume", "pvc-1", change)
    story = inspect_claim("default/ledger", _scene(cluster, records))
    assert any("NOT encrypted" in alarm and "PersistentVolume" in alarm for alarm in story.alarms)


def test_a_volume_whose_disk_is_gone_is_an_alarm(cluster: Cluster, records: DirectVolumes) -> None:
    cluster.attach(cluster.volume, "")
    cluster.backend.connect().delete_volume(cluster.volume.handle, Deadline.after(30))
    story = inspect_claim("default/ledger", _scene(cluster, records))
    assert any("the cloud has no volume" in alarm for alarm in story.alarms)


def test_an_orphaned_machine_is_remarked(cluster: Cluster, records: DirectVolumes) -> None:
    cluster.api.delete("Pod", "ledger-0", gracePeriodSeconds="0")
    story = inspect_claim("default/ledger", _scene(cluster, records))
    assert any(MACHINE in remark for remark in story.remarks)


def test_what_is_not_there_is_an_error(cluster: Cluster, records: DirectVolumes) -> None:
    cluster.create(claim("waiting", ""))
    scene = _scene(cluster, records)
    for text in ("default/nothing", "default/waiting"):
        with pytest.raises(click.ClickException):
            inspect_claim(text, scene)
    with pytest.raises(click.ClickException, match="no volume"):
        inspect_volume("pvc-nothing", scene)


def test_without_a_cloud_the_cluster_is_told_and_the_rest_called_unseen(
    cluster: Cluster, records: DirectVolumes
) -> None:
    scene = replace(_scene(cluster, records), cloud="no cloud was named")
    story = inspect_claim("default/ledger", scene)
    assert [note for note in story.unseen if "no cloud was named" in note]
    assert not [section for section in story.sections if section.key == "disk"]
    assert _section(story, "persistentVolume")["claim"] == "default/ledger"


def test_the_command_shows_no_secret(api_server: ApiServer, cluster: Cluster) -> None:
    for output in ("table", "json"):
        arguments = ("inspect", "default/ledger", f"--output={output}")
        printed = run_with_secrets(cluster, api_server.kubeconfig, *arguments, expect=0)
        assert cluster.volume.disk_id in printed
