"""The worker leaves nothing behind, however its test run ends, and its images are the Dockerfile's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO

import pytest

from tests.cluster import chart_images
from tests.cluster.api import until
from tests.cluster.namespaces import Namespaces
from tests.cluster.oci import layer_of_folder

_ADDRESSES = ("10.88.1.1", "10.96.0.1")

_HELD_BY_A_PROCESS = """
import sys
from typing import IO
from tests.cluster.namespaces import Namespaces
with Namespaces([], ["10.88.1.1"]) as namespaces:
    namespaces.start("sleeper", "sleep", "600")
    namespaces.run("sh", "-c", "until pidof sleep; do :; done")
    print(namespaces.folder, flush=True)
    sys.stdin.read()
"""


def test_a_worker_changes_nothing_of_the_machine() -> None:
    panic = Path("/proc/sys/kernel/panic").read_text()
    link = f"w{os.getpid()}"
    with Namespaces([], _ADDRESSES) as namespaces:
        folder = namespaces.folder
        namespaces.run("ip", "link", "add", link, "type", "veth")
        namespaces.run("mount", "-t", "tmpfs", "tmpfs", "/var/lib")
        namespaces.run("sh", "-c", "echo 7 >/proc/sys/kernel/panic; touch /run/mark")
        assert namespaces.run("cat", "/proc/sys/kernel/panic") == "7\n"
        assert namespaces.outside("/run/mark").exists()
        assert Path("/proc/sys/kernel/panic").read_text() == panic
        assert not Path("/sys/class/net", link).exists()
        assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert not folder.exists()


def test_what_runs_on_a_worker_ends_with_a_test_run_that_is_killed_and_the_next_one_clears_up() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HELD_BY_A_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    folder = holder.stdout.readline().strip()
    assert _processes_with(folder)
    holder.send_signal(signal.SIGKILL)
    holder.wait(30)
    until(lambda: not _processes_with(folder), what="the worker's processes are gone")
    assert Path(folder).exists()
    with Namespaces([], _ADDRESSES):
        assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("stage", "user", "has_sdk"),
    [("node", "0:0", False), ("controller", "65532:65532", False), ("controller-aws", "65532:65532", True)],
)
def test_an_image_is_what_the_dockerfile_says(stage: str, user: str, has_sdk: bool) -> None:
    with tarfile.open(chart_images.own_images()[stage]) as archive:
        (image,) = json.load(_file(archive, "index.json"))["manifests"]
        manifest = json.load(_file(archive, _blob(image)))
        settings = json.load(_file(archive, _blob(manifest["config"])))["config"]
        assert settings["User"] == user
        assert settings["Entrypoint"][0] == "confidential-csi"
        names: set[str] = set()
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=_file(archive, _blob(layer))) as tar:
                names.update(tar.getnames())
    (packages,) = {name.removesuffix("/driver/node.py") for name in names if name.endswith("/driver/node.py")}
    assert (f"{packages}/boto3" in names) == has_sdk
    # No passwords of this machine, and nothing of the stages that built it.
    assert not {name for name in names if name.startswith(("etc/shadow", "src/", "dist/"))}


def test_a_layer_cant_lack_what_is_below_it(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    subprocess.run(["mknod", upper / "removed", "c", "0", "0"], check=True)
    with pytest.raises(ValueError, match="removed"):
        layer_of_folder(tmp_path / "layer.tar", upper)


def _processes_with(text: str) -> list[str]:
    """Processes whose mount namespace has something of that name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text in (process / "mountinfo").read_text():
                found.append(process.name)
        except OSError:
            continue  # it ended
    return found


def _blob(entry: dict[str, str]) -> str:
    return f"blobs/{entry['digest'].replace(':', '/')}"


def _file(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    assert file is not None
    return file
