"""The images: BuildKit's linter finds nothing, and their stages make what each role needs, and no more."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.dockerfile import Dockerfile
from tests.images.stages import Images
from tests.peers import peer_program
from tests.tools.go_programs import CACHE
from tests.tools.own_folders import own_folder

_TOP = Path(__file__).parents[2]
_TREE = "/opt/confidential-csi"

#: Target to its lock, and what its role says without settings: it has got as far as its provider.
_TARGETS = {
    "controller": ("driver", "--provider=local", "CONFIDENTIAL_CSI_LOCAL_DIRECTORY must be set"),
    "controller-aws": ("aws", "--provider=aws", "CONFIDENTIAL_CSI_AWS_REGION must be set"),
    "controller-azure": ("azure", "--provider=azure", "CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID must be set"),
    "controller-libvirt": ("libvirt", "--provider=libvirt", "LIBVIRT_URI must be set"),
    "node": ("driver", "--zone=", "--node-id"),
}
#: Lock to the most megabytes that an image has on top of its base; a third more than it takes.
_MOST_MB = {"driver": 36, "aws": 72, "azure": 88, "libvirt": 38}
every_target = pytest.mark.parametrize("target", _TARGETS)


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    with own_folder("stages") as folder:
        yield Images(_TOP, folder, CACHE / "pip")


def _lint(content: str, *targets: str) -> list[str]:
    command = [str(peer_program("dockerfile-lint")), *targets]
    content = content.replace("# check=error=true\n", "")  # or it would end at the first finding
    done = subprocess.run(command, input=content, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


def test_the_linter_of_build_kit_finds_nothing() -> None:
    assert _lint((_TOP / "Dockerfile").read_text(), *_TARGETS) == []
    assert _lint((_TOP / "examples" / "provider" / "Dockerfile").read_text(), "") == []


def test_the_linter_would_find_something() -> None:
    bad = (_TOP / "Dockerfile").read_text().replace("ARG SOURCE", "ARG SECRET_TOKEN\nARG SOURCE", 1)
    assert any("SecretsUsedInArgOrEnv" in line for line in _lint(bad, "node"))


def _locked(lock: str) -> set[str]:
    text = (_TOP / "locks" / f"{lock}.txt").read_text()
    return {
        name.replace("-", "_").lower() for name in re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE)
    }


@every_target
def test_an_image_has_the_packages_of_its_lock_and_no_others(images: Images, target: str) -> None:
    """So it has no tests, no build tools, not even pip, and no other cloud's SDK."""
    lock, _, _ = _TARGETS[target]
    (packages,) = images.tree(target, _TREE).glob("lib/python*/site-packages")
    installed = {path.name.partition("-")[0].lower() for path in packages.glob("*.dist-info")}
    assert installed == _locked(lock) | {"confidential_csi"}
    assert not (packages / "tests").exists()
    compilers = re.compile(
        r"(?:.*-)?(?:cc|gcc|g\+\+|c\+\+|clang|ld|as|make|rustc|go)(?:-[0-9.]+)?|.*\.(?:[ao]|c|cpp)"
    )
    files = [path for path in images.tree(target, _TREE).rglob("*") if path.is_file() or path.is_symlink()]
    assert [str(path) for path in files if compilers.fullmatch(path.name)] == []
    assert sum(path.lstat().st_size for path in files) <= _MOST_MB[lock] * 1_000_000
    others = images.tree(target, "/")
    assert {path.name for path in others.iterdir()} <= {"opt", "etc", "var", "tmp", "proc", "dev"}


@every_target
def test_the_role_starts_as_the_image_s_user(images: Images, target: str) -> None:
    _, argument, message = _TARGETS[target]
    entry_point = images.entry_point(target)
    helped = images.run(target, [*entry_point, "--help"])
    assert helped.returncode == 0, helped.stderr
    assert "--endpoint" in helped.stdout
    who = images.run(target, ["id", "-u", "-n"])
    assert who.stdout.strip() == ("root" if target == "node" else "confidential-csi")
    missing = images.run(target, [*entry_point, "--endpoint=unix:///tmp/x.sock", argument])
    assert missing.returncode != 0
    assert message in missing.stderr


def test_only_the_node_is_root() -> None:
    dockerfile = Dockerfile((_TOP / "Dockerfile").read_text())
    users = {target: dockerfile.stages[target].last("USER") for target in _TARGETS}
    assert users == {target: "0:0" if target == "node" else "65532:65532" for target in _TARGETS}


def test_every_base_is_the_one_that_can_be_pinned_and_every_package_has_a_hash() -> None:
    dockerfile = Dockerfile((_TOP / "Dockerfile").read_text())
    assert set(dockerfile.arguments) == {"PYTHON_IMAGE"}
    for stage in dockerfile.stages.values():
        assert stage.base in dockerfile.stages or stage.base == "${PYTHON_IMAGE}"
        for one in stage.instructions:
            for command in re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&]+", one.rest):
                local = "--no-index" in command or ("--no-deps" in command and command.rstrip().endswith("."))
                assert "--require-hashes" in command or local, command


def test_a_line_of_a_dockerfile_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match="ADD"):
        Dockerfile("FROM a AS b\nADD x /x\n")
    with pytest.raises(ValueError, match="without a name"):
        Dockerfile("FROM a\n")


def test_the_same_sources_make_the_same_files(images: Images) -> None:
    """Also at another time, in another directory."""
    with own_folder("stages") as folder:
        again = Images(_TOP, folder, CACHE / "pip")
        first, second = (_digests(one.tree("node", _TREE)) for one in (images, again))
    assert len(first) > 100
    assert first == second


def _digests(tree: Path) -> dict[str, str]:
    return {
        str(path.relative_to(tree)): str(path.readlink())
        if path.is_symlink()
        else f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(tree.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
