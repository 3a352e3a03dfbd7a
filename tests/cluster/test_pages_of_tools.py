"""The commands of the pages about doctor and inspect, on a real API server and the strict EC2."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.doctor.command import EXIT_FAILURES, EXIT_WARNINGS
from tests.cluster.control_plane import ApiServer
from tests.cluster.healthy_cluster import Cluster
from tests.tools.driver_process import COMMAND
from tests.unit.cli.inspect.images import write_image

_DOCS = Path(__file__).parents[2] / "docs"
#: A block that names this file as its test; those of the others are run elsewhere (docs/tested-commands.md).
_BLOCK = re.compile(
    r"^<!-- commands: run by tests/cluster/test_pages_of_tools\.py -->\n+```console\n(.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture(scope="module")
def cluster(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A healthy one, with a kubeconfig where users have it, and a disk image beside it."""
    folder = tmp_path_factory.mktemp("pages")
    made = Cluster(api_server.api, api_server.kubeconfig, folder)
    made.reset()
    (folder / ".kube").mkdir()
    shutil.copy(api_server.kubeconfig, folder / ".kube" / "config")
    write_image(folder / "disk.raw")
    return made


def _run_page(name: str, cluster: Cluster) -> dict[str, subprocess.CompletedProcess[str]]:
    """Each command of the page's blocks that are run here to how it ended."""
    found = {}
    for block in _BLOCK.findall((_DOCS / name).read_text()):
        for line in block.splitlines():
            assert line.startswith(("$ confidential-csi", "# confidential-csi", "$ AWS_REGION="))
            found[line[2:]] = subprocess.run(
                ["bash", "-c", line[2:]],
                cwd=cluster.folder,
                env={
                    "PATH": f"{COMMAND.parent}:{os.environ['PATH']}",
                    "HOME": str(cluster.folder),
                    "AWS_REGION": "us-east-1",
                    "AWS_ENDPOINT_URL": cluster.backend.url,
                    "AWS_ACCESS_KEY_ID": "AKIATEST",
                    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
                },
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
    return found


def test_the_commands_of_the_doctors_page_run(cluster: Cluster) -> None:
    ended = _run_page("doctor.md", cluster)
    assert len(ended) == 3
    for command, done in ended.items():
        # This machine may look like a node, and then not like a healthy one.
        assert done.returncode in (0, EXIT_WARNINGS, EXIT_FAILURES), f"{command}: {done.stderr}"
        assert "csi-driver" in done.stdout


def test_the_commands_of_the_page_about_inspect_run(cluster: Cluster) -> None:
    ended = _run_page("inspect.md", cluster)
    assert len(ended) == 3
    for command, done in ended.items():
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
