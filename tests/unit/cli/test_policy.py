"""``confidential-csi policy``: what it says of a policy, and the policies it writes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from agent.policy import Policy, VolumeRules
from agent.policy_schema import parse_policy
from cli.main import main
from cli.pod_policy import DRIVER

EXAMPLES = Path(__file__).parents[3] / "examples"
KEY_ID = "default/volume-key/x"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["policy", *map(str, arguments)])


def storage_class(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "StorageClass",
        "metadata": {"name": "fast"},
        "provisioner": DRIVER,
        "parameters": {"encrypt-type": "luks2", "kbs-key-id": KEY_ID},
        **changes,
    }


def claim(name: str = "c", size: str = "1Gi", **spec: Any) -> dict[str, Any]:
    requests = {"resources": {"requests": {"storage": size}}}
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"storageClassName": "fast", **requests, **spec},
    }


def pod(*mounts: dict[str, Any], claims: tuple[str, ...] = ("c",), **spec: Any) -> dict[str, Any]:
    """A pod with one container for each mount."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    containers = [{"name": str(number), "volumeMounts": [one]} for number, one in enumerate(mounts)]
    return {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"volumes": volumes, "containers": containers, **spec},
    }


def mount(path: str = "/data", name: str = "c", **changes: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **changes}


class Writer:
    """Runs ``policy for`` on manifests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, workload: dict[str, Any], *more: dict[str, Any]) -> Result:
        first, second = self._folder / "pod.yaml", self._folder / "more.yaml"
        first.write_text(yaml.safe_dump(workload))
        second.write_text(yaml.safe_dump_all(more))
        return run("for", first, second)

    def rules(self, workload: dict[str, Any], *more: dict[str, Any]) -> dict[str, VolumeRules]:
        result = self.run(workload, *(more or (claim(), storage_class())))
        assert result.exit_code == 0, result.output
        policy = parse_policy(result.stdout)
        assert isinstance(policy, Policy)
        return dict(policy.volumes or {})

    def error(self, workload: dict[str, Any], *more: dict[str, Any]) -> str:
        result = self.run(workload, *(more or (claim(), storage_class())))
        assert result.exit_code == 1
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert result.stdout == ""
        return result.stderr


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def test_the_example_is_explained() -> None:
    result = run("check", EXAMPLES / "volumes.toml")
    assert result.exit_code == 0
    for words in ("/data:", "LUKS2", "default/volume-key/ledger", "67108864 bytes (64 MiB)", "group 2000"):
        assert words in result.output


def test_every_rule_is_explained_and_the_dangerous_ones_stand_out(tmp_path: Path) -> None:
    file = tmp_path / "volumes.toml"
    file.write_text(
        'version = 1\n[volumes."/a"]\nkey = "a/b/c"\nprevious-key = "a/b/old"\nformat = "never"\n'
        'adopt = true\nuuid = "0a1b2c3d-0123-4567-89ab-0123456789ab"\ndiscard = true\n[volumes."/b"]\n'
        'encryption = "none"\nread-only = true\n[volumes."/c"]\nkey = "a/b/d"\n'
    )
    output = run("check", file).output
    for words in ("NOT ENCRYPTED", "ADOPTED", "a/b/old", "0a1b2c3d", "never formatted", "freed blocks"):
        assert words in output
    assert "read-only" in output
    assert "a blank disk is formatted" in output


def test_what_holds_for_all_volumes_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "volumes.toml"
    file.write_text("version = 1\n[volumes]\n")
    output = run("check", file).output
    assert "opens them all the same" in output
    assert "told how full" in output
    file.write_text(
        'version = 1\nother-mounts = ["/data/conf"]\n[volumes]\n[agent]\nmeasurement = "required"\n'
        "usage-figures = false\n"
    )
    output = run("check", file).output
    for words in ("a VM that can't opens none", "kept from the host", "no volumes: /data/conf"):
        assert words in output


def test_a_policy_without_volumes_and_a_reference_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "volumes.toml"
    file.write_text("version = 1\n[volumes]\n")
    assert "no volume is mounted at all" in run("check", file).output
    file.write_text('version = 1\npolicy-resource = "a/b/c"\n')
    assert "a/b/c" in run("check", file).output


def test_a_policy_that_the_guest_would_refuse_fails(tmp_path: Path) -> None:
    file = tmp_path / "volumes.toml"
    file.write_text('version = 1\n[volumes."/a"]\nkye = "a/b/c"\n')
    result = run("check", file)
    assert result.exit_code == 1
    assert "[policy-invalid]" in result.stderr
    assert "did you mean key" in result.stderr
    assert run("check", tmp_path / "missing").exit_code == 2


def test_initdata_is_told_from_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "initdata.toml"
    file.write_text('algorithm = "sha256"\nversion = "0.1.0"\n[data]\n"volumes.toml" = "version = 1"\n')
    result = run("check", file)
    assert result.exit_code == 1
    assert "is initdata, not a policy" in result.stderr


def test_the_examples_fit_each_other() -> None:
    """What is written for the example pod allows what the example policy allows."""
    result = run("for", *(EXAMPLES / name for name in ("pod.yaml", "pvc.yaml", "storageclass.yaml")))
    assert result.exit_code == 0
    assert result.stderr == ""
    assert parse_policy(result.stdout) == parse_policy((EXAMPLES / "volumes.toml").read_bytes())


def test_key_and_size_come_from_the_class_and_the_claim(writer: Writer) -> None:
    assert writer.rules(pod(mount())) == {"/data": VolumeRules(key_id=KEY_ID, minimum_size=1 << 30)}
    small = writer.rules(pod(mount()), claim(size="10G"), storage_class())
    assert small["/data"].minimum_size == 10_000_000_000


def test_the_default_class_is_found_by_its_mark(writer: Writer) -> None:
    """Field case K3: a claim without a class."""
    marked = storage_class(
        metadata={"name": "x", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    )
    unnamed = claim()
    del unnamed["spec"]["storageClassName"]
    assert writer.rules(pod(mount()), unnamed, marked)["/data"].key_id == KEY_ID


def test_without_the_class_the_key_is_left_to_the_author(writer: Writer) -> None:
    result = writer.run(pod(mount()))
    assert result.exit_code == 0
    assert "Note:" in result.stderr
    assert "# key =" in result.stdout, "a made-up key would be a policy for another volume"


def test_a_class_that_does_not_encrypt_is_not_written_down_as_meant(writer: Writer) -> None:
    """Field case L3."""
    assert "does not encrypt" in writer.error(pod(mount()), claim(), storage_class(parameters={}))
    bad = storage_class(parameters={"encrypt-type": "luks2", "kbs-key-id": "kbs:///a/b/c"})
    assert "scheme" in writer.error(pod(mount()), claim(), bad)


def templated(key_id: str) -> dict[str, Any]:
    return storage_class(parameters={"encrypt-type": "luks2", "kbs-key-id": key_id})


def in_namespace(manifest: dict[str, Any], namespace: str = "team") -> dict[str, Any]:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


def test_a_templated_key_is_the_one_that_the_controller_will_use(writer: Writer) -> None:
    workload, bound = in_namespace(pod(mount())), in_namespace(claim(volumeName="pvc-7"))
    for template, key_id in (
        ("${pvc.namespace}/volume-key/${pvc.name}", "team/volume-key/c"),
        ("default/${pvc.namespace}.${pvc.name}/${pv.name}", "default/team.c/pvc-7"),
    ):
        assert writer.rules(workload, bound, templated(template))["/data"].key_id == key_id


def test_a_volume_s_name_is_needed_once_the_template_has_it(writer: Writer) -> None:
    message = writer.error(pod(mount()), claim(), templated("default/key/${pv.name}"))
    assert "${pv.name}" in message
    assert "spec.volumeName" in message


def test_a_namespace_that_is_assumed_is_told(writer: Writer) -> None:
    result = writer.run(pod(mount()), claim(), templated("${pvc.namespace}/key/${pvc.name}"))
    assert 'key = "default/key/c"' in result.stdout
    assert "namespace default" in result.stderr
    assert writer.run(pod(mount()), claim(), storage_class()).stderr == ""


def test_each_replica_s_claim_has_its_own_key_so_one_policy_can_t_hold_it(writer: Writer) -> None:
    workload = {
        "kind": "StatefulSet",
        "metadata": {"name": "s", "namespace": "team"},
        "spec": {"template": pod(mount(name="t"), claims=()), "volumeClaimTemplates": [claim("t")]},
    }
    assert "claim of its own" in writer.error(workload, templated("default/key/${pvc.name}"))
    rules = writer.rules(workload, templated("${pvc.namespace}/key/shared"))
    assert rules["/data"].key_id == "team/key/shared"


def test_an_ephemeral_claim_is_named_after_its_pod(writer: Writer) -> None:
    workload = pod(mount("/e", "e"), claims=())
    workload["spec"]["volumes"] = [{"name": "e", "ephemeral": {"volumeClaimTemplate": claim()}}]
    rules = writer.rules(workload, templated("default/key/${pvc.name}"))
    assert rules["/e"].key_id == "default/key/p-e"


def test_a_copy_s_key_is_not_made_up(writer: Writer) -> None:
    """Field case E5: it is its source's, which the manifests here don't tell."""
    copy = claim(dataSource={"kind": "VolumeSnapshot", "name": "s", "apiGroup": "snapshot.storage.k8s.io"})
    assert "source's key" in writer.error(pod(mount()), copy, templated("default/key/${pvc.name}"))
    assert writer.rules(pod(mount()), copy, storage_class())["/data"].key_id == KEY_ID


@pytest.mark.parametrize("key_id", ["default/key/${pvc.uid}", "default/${pvc.name}", "a/b/c/${pvc.name}"])
def test_a_template_that_the_controller_would_refuse_is_an_error(writer: Writer, key_id: str) -> None:
    assert "kbs-key-id of StorageClass fast" in writer.error(pod(mount()), claim(), templated(key_id))


def test_claims_of_other_drivers_are_left_out(writer: Writer) -> None:
    assert writer.rules(pod(mount()), claim(), storage_class(provisioner="other")) == {}


def test_what_the_guest_would_refuse_beside_the_volumes_is_named(writer: Writer) -> None:
    """A configuration within the volume, or within another mount; a subPath; another driver's volume."""
    workload = pod(
        mount(),
        mount("/data/conf/", "conf"),
        mount("/etc/app.conf", "conf", subPath="app.conf"),
        mount("/secrets", "store"),
        mount("/etc/conf", "conf"),
        mount("/var/run/secrets", "conf"),
    )
    workload["spec"]["volumes"] += [
        {"name": "conf", "configMap": {"name": "x"}},
        {"name": "store", "csi": {"driver": "secrets-store.csi.k8s.io"}},
    ]
    workload["spec"]["containers"].append(
        {"name": "two", "volumeMounts": [mount("/srv/conf/more", "conf"), mount("/srv/conf", "conf")]}
    )
    result = writer.run(workload, claim(), storage_class())
    parsed = parse_policy(result.stdout)
    assert isinstance(parsed, Policy)
    assert parsed.other_mounts == {
        *("/data/conf", "/etc/app.conf", "/secrets", "/srv/conf/more"),
        "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    assert "Note: other-mounts" in result.stderr
    assert "other-mounts" not in writer.run(pod(mount()), claim(), storage_class()).output


def test_one_claim_at_two_paths_and_in_two_containers(writer: Writer) -> None:
    rules = writer.rules(pod(mount("/a"), mount("/a/"), mount("/b")))
    assert set(rules) == {"/a", "/b"}


def test_read_only_holds_only_if_no_container_writes(writer: Writer) -> None:
    assert writer.rules(pod(mount(readOnly=True)))["/data"].read_only
    assert not writer.rules(pod(mount(readOnly=True), mount()))["/data"].read_only
    assert not writer.rules(pod(mount(), mount(readOnly=True)))["/data"].read_only


def test_the_group_is_the_pods(writer: Writer) -> None:
    assert writer.rules(pod(mount(), securityContext={"fsGroup": 7}))["/data"].fs_group == 7


def test_templates_of_a_stateful_set_and_ephemeral_volumes(writer: Writer) -> None:
    """Field case K3."""
    template = pod(mount(name="t"), claims=())
    template["spec"]["containers"][0]["volumeMounts"].append(mount("/e", "e"))
    template["spec"]["volumes"] = [{"name": "e", "ephemeral": {"volumeClaimTemplate": claim()}}]
    workload = {
        "kind": "StatefulSet",
        "metadata": {"name": "s"},
        "spec": {"template": template, "volumeClaimTemplates": [claim("t")]},
    }
    rules = writer.rules(workload, storage_class())
    assert rules == dict.fromkeys(("/data", "/e"), VolumeRules(key_id=KEY_ID, minimum_size=1 << 30))


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (pod(mount(subPath="x")), "subPath"),
        (pod(mount("/run/x")), "/run"),
        (pod(mount(), mount(name="d"), claims=("c", "d")), "different volumes"),
        (pod({"name": "c"}), "mountPath"),
        ({"kind": "Service"}, "0 pods"),
        ({"kind": "Pod", "spec": {"containers": ["x"]}}, "Kubernetes"),
        (
            {"kind": "Pod", "spec": {"containers": [{"volumeDevices": [{"name": "c", "devicePath": "/x"}]}]}},
            "block device",
        ),
    ],
)
def test_what_no_policy_fits_is_an_error(writer: Writer, workload: dict[str, Any], words: str) -> None:
    assert words in writer.error(workload)


@pytest.mark.parametrize("group", [-5, 1 << 40, "a", 1.5, True])
def test_no_policy_is_written_that_the_guest_would_refuse(writer: Writer, group: Any) -> None:
    error = writer.error(pod(mount(), securityContext={"fsGroup": group}))
    assert "the guest would refuse a policy for this manifest" in error


def test_a_manifest_writes_no_line_of_the_policy(writer: Writer) -> None:
    workload = {
        "kind": 'Deployment\nother-mounts = ["/tmp"]',
        "metadata": {"name": "n\nx = 1", "namespace": "a\ny = 1"},
        "spec": {"template": {"spec": pod(mount())["spec"]}},
    }
    result = writer.run(
        workload, {**claim(), "metadata": {"name": "c", "namespace": "a\ny = 1"}}, storage_class()
    )
    assert result.exit_code == 0, result.output
    assert tomllib.loads(result.stdout).keys() == {"version", "volumes"}


def test_a_file_that_is_no_yaml_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("a: 1\npassword: [planted")
    result = run("for", file)
    assert result.exit_code == 1
    assert f"{file}:2: not YAML" in result.stderr
    assert "planted" not in result.stderr


@pytest.mark.parametrize("text", ["kind: List", "kind: List\nitems: {a: b}", f"a: 0x{'f' * 5000}", "- a", ""])
def test_a_file_without_a_pod_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    result = run("for", file)
    assert result.exit_code == 1
    assert "the file holds 0 pods" in result.stderr
