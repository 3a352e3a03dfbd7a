"""The command as people and pipelines use it."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import cli
from cli.lint.command import lint
from cli.lint.rules import RULES
from tests.bench.lint import many_files
from tests.lint.test_corpus import CORPUS
from tests.tools.driver_process import COMMAND

_TOP = Path(cli.__file__).parents[1]
_WRONG = CORPUS / "classes" / "half-encrypted.yaml"
_WARNED = CORPUS / "kubernetes-docs" / "generic-ephemeral.yaml"
_RIGHT = CORPUS / "classes" / "right-aws.yaml"


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(lint, [str(one) for one in arguments], input=text)


def findings(*arguments: str | Path, text: str | None = None) -> list[tuple[str, int, str]]:
    found = json.loads(run(*arguments, "-o", "json", text=text).stdout)["findings"]
    return [(Path(one["file"]).name, one["line"], one["rule"]) for one in found]


def test_the_exit_code_tells_errors_from_warnings_from_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert run(_RIGHT).exit_code == 0
    assert run(_WARNED).exit_code == 0
    assert run(_WRONG).exit_code == 1
    missing = run(_WRONG, tmp_path / "missing.yaml")
    assert missing.exit_code == 2
    assert "missing.yaml: No such file or directory" in missing.stderr
    # What could be read was checked all the same.
    assert "encryption-incomplete" in missing.stdout
    assert run().exit_code == 2
    assert run("--provider", "gcp", _RIGHT).exit_code == 2
    assert run("--peer-pod-handlers", "Kata Remote", _RIGHT).exit_code == 2


def test_an_installation_without_its_packages_is_told_what_to_install() -> None:
    program = "import sys; sys.modules['yaml'] = None; from cli.main import main; main()"
    finished = subprocess.run(
        [sys.executable, "-c", program, "lint", str(_RIGHT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 2
    assert "lint needs the Python package yaml: pip install '.[cli]'" in finished.stderr


def test_a_finding_says_where_what_and_how_to_fix_it() -> None:
    result = run(_WRONG)
    (line,) = (line for line in result.stdout.splitlines() if f"{_WRONG}:8 " in line)
    assert line.split()[1:3] == ["error", "encryption-incomplete"]
    assert "StorageClass/half: encrypt-type is set and kbs-key-id is not" in line
    assert f"-> {RULES['encryption-incomplete'].fix}" in result.stdout
    assert "1 file: 3 errors, 0 warnings" in result.stderr


def test_json_has_every_field_and_nothing_else_is_on_standard_output() -> None:
    document = json.loads(run(_WRONG, _RIGHT, "--output", "json").stdout)
    assert (document["files"], document["errors"], document["warnings"]) == (2, 3, 0)
    assert set(document["findings"][0]) == {
        *("file", "line", "rule", "severity", "object", "message", "meaning", "fix"),
    }
    assert document["storageClasses"][-1] == {
        "name": "fast",
        "file": str(_RIGHT),
        "line": 1,
        "volumes": "encrypted in the guest, each with the key of its name: "
        "${pvc.namespace}/volume-key/${pvc.name}",
    }


def test_a_class_is_said_to_encrypt_or_not_before_anything_is_created() -> None:
    output = run(_RIGHT, CORPUS / "older-driver" / "storageclass-azure-encrypted.yaml", _plain()).stdout
    assert "none: the driver refuses this class" in output
    assert "NOT encrypted: the host can read them" in output
    assert "encrypted in the guest" in output


def _plain() -> Path:
    return CORPUS / "classes" / "right-plain-xfs.yaml"


def test_standard_input_may_be_yaml_or_toml() -> None:
    assert findings("-", text=_WRONG.read_text()) == [
        ("-", 8, "encryption-incomplete"),
        ("-", 17, "encryption-incomplete"),
        ("-", 17, "key-id"),
    ]
    policy = (CORPUS / "policies" / "misspelled.toml").read_text()
    assert findings("-", text=policy) == [("-", 6, "policy-invalid")]
    assert "stdin:6" in run("-", text=policy).stdout


def test_json_manifests_are_read_too(tmp_path: Path) -> None:
    manifest = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "a"},
        "provisioner": "caa-csi-block.csi.confidentialcontainers.io",
        "parameters": {"cloudProvider": "local", "cdhKey": "x"},
    }
    path = tmp_path / "class.json"
    path.write_text(json.dumps(manifest, indent="\t"))
    assert findings(path) == [("class.json", 10, "parameter-without-effect")]


def test_objects_of_all_files_are_checked_together(tmp_path: Path) -> None:
    for name in ("storageclass", "pvc", "pod"):
        shutil.copy(_TOP / "examples" / f"{name}.yaml", tmp_path)
    pod = tmp_path / "pod.yaml"
    assert findings(tmp_path) == []
    assert findings(tmp_path / "storageclass.yaml") == [("storageclass.yaml", 14, "shared-key")]
    assert "its claim 'ledger' was not given" in run(pod).stderr
    pod.write_text(pod.read_text().replace("kata-remote", "kata-qemu"))
    assert findings(pod) == []
    assert findings(pod, tmp_path / "pvc.yaml") == []
    assert findings(pod, tmp_path / "pvc.yaml", tmp_path / "storageclass.yaml") == [
        ("pod.yaml", 8, "runtime-class")
    ]


def test_what_a_list_of_one_kind_holds_need_not_say_its_kind(tmp_path: Path) -> None:
    """As the API server answers."""
    classes = list(yaml.safe_load_all(_WRONG.read_text()))
    for one in classes:
        del one["apiVersion"], one["kind"]
    several = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClassList", "items": classes}
    path = tmp_path / "list.json"
    path.write_text(json.dumps(several))
    assert {rule for _, _, rule in findings(path)} == {rule for _, _, rule in findings(_WRONG)}


def test_names_are_looked_up_in_the_nearest_directory(tmp_path: Path) -> None:
    """Two overlays with the same names are two clusters."""
    for overlay in ("prod", "test"):
        (tmp_path / overlay).mkdir()
        for name in ("storageclass", "pvc", "pod"):
            shutil.copy(_TOP / "examples" / f"{name}.yaml", tmp_path / overlay)
    shutil.copy(_TOP / "examples" / "volumes.toml", tmp_path / "prod")
    assert findings(tmp_path) == []


def test_the_project_s_own_manifests_have_no_mistake() -> None:
    assert findings(_TOP / "examples", _TOP / "deploy") == []


def test_of_a_directory_templates_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("name: x\n")
    (chart / "templates" / "class.yaml").write_text("{{ if x }}\nkind: [\n")
    (tmp_path / ".hidden.yaml").write_text("a: [\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    result = run(tmp_path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert run(tmp_path / ".hidden.yaml").exit_code == 1
    assert run(tmp_path / "pyproject.toml").exit_code == 1  # named, so it must be a policy


@pytest.mark.parametrize("output", ["table", "json"])
def test_what_a_hostile_directory_holds_neither_stops_it_nor_steers_the_terminal(
    tmp_path: Path, output: str
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for name, target in (
        ("loop.yaml", "loop.yaml"),
        ("endless.yaml", "/dev/zero"),
        ("\x1b[2J.yaml", "missing"),
        ("\udcff.yaml", "missing"),
    ):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "\x9b\udcfe.yaml").write_text("a: [\n")
    finished = subprocess.run(
        [COMMAND, "lint", tmp_path, "--output", output],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 2
    printed = (finished.stdout + finished.stderr).decode()
    assert "Traceback" not in printed
    assert [one for one in printed if not (one.isprintable() or one == "\n")] == []
    for name in ("pipe", "loop", "endless", "\\x1b[2J", "\\udcff"):
        assert f"{name}.yaml: " in printed


def test_a_directory_that_cannot_be_listed_is_no_clean_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    shutil.copy(_RIGHT, tmp_path)
    listed = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "closed: Permission denied" in result.stderr
    assert "1 file: 0 errors" in result.stderr


def test_options_tell_what_manifests_do_not() -> None:
    assert findings(_WARNED, "--peer-pod-handlers", "kata-remote,isolated-vm") == []
    size = CORPUS / "classes" / "right-without-cloud.yaml"
    assert findings(size, "--provider", "libvirt") == [(size.name, 18, "size-rounded")]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_can_be_explained(rule: str) -> None:
    result = run("--explain", rule)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{rule} ({RULES[rule].severity})\n")
    assert "Fix: " in result.stdout
    document = json.loads(run("--explain", rule, "-o", "json").stdout)
    assert document["meaning"] == RULES[rule].meaning


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nope", "docs/lint.md lists them"),
        ("mount-paht", "did you mean mount-path or "),
        ("Key-id", "did you mean key-id"),
        ("encrypt", "did you mean encrypt-type or encryption-incomplete"),
    ],
)
def test_a_rule_that_does_not_exist_is_named_and_its_neighbors_are(name: str, hint: str) -> None:
    result = run("--explain", name)
    assert result.exit_code == 2
    (error,) = (line for line in result.stderr.splitlines() if line.startswith("Error: "))
    assert f"there is no rule {name!r}" in error
    assert hint in error
    assert len(error) < 160


@pytest.mark.parametrize("output", ["table", "json"])
def test_no_planted_secret_is_printed(output: str) -> None:
    """Field case L2: neither by the rule that finds it nor by any other, nor by a parser."""
    result = run(CORPUS, "-o", output)
    assert result.exit_code == 1
    assert "credential-parameter" in result.stdout
    assert "PLANTED-" not in result.stdout
    assert "PLANTED-" not in result.stderr


def test_the_table_cannot_be_forged_by_what_a_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "class.yaml"
    path.write_text(
        "kind: StorageClass\n"
        "metadata: {name: \"a\\e[2Jb\\nerror\"}\n"
        "provisioner: caa-csi-block.csi.confidentialcontainers.io\n"
        "parameters: {\"awsVolume\\e]0;typ\": x}\n"
    )  # fmt: skip
    result = run(path)
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout


def test_a_thousand_files_take_at_most_five_seconds(tmp_path: Path) -> None:
    """Of the process's own time: what others on the machine do is not lint's."""
    many_files(tmp_path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run(
        [COMMAND, "lint", tmp_path], capture_output=True, text=True, timeout=240, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("1000 files: ")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_starting_it_imports_no_sdk_and_reading_its_help_no_rule_of_the_driver() -> None:
    program = (
        "import sys; from cli.main import main; main(sys.argv[1:], standalone_mode=False); "
        "print(*sys.modules)"
    )

    def imported(*arguments: str) -> set[str]:
        printed = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout
        return set(printed.splitlines()[-1].split())

    modules = imported("lint", str(_RIGHT))
    assert "driver.parameters" in modules
    packages = {name.partition(".")[0] for name in modules}
    assert not packages & {"boto3", "botocore", "azure", "libvirt", "jsonschema", "tests"}
    assert not {"yaml", "grpc"} & imported("lint", "--help")
