"""In a controller's container: the socket and the cloud are looked at, and the rest is said not to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.tools.driver_process import COMMAND, running


def test_the_socket_and_the_cloud_are_examined_and_the_rest_is_skipped(tmp_path: Path) -> None:
    disks = tmp_path / "disks"
    disks.mkdir()
    settings = {"CONFIDENTIAL_CSI_PROVIDER": "local", "CONFIDENTIAL_CSI_LOCAL_DIRECTORY": str(disks)}
    with running("controller", tmp_path, env=settings) as driver:
        done = subprocess.run(
            [
                *(COMMAND, "doctor", f"--endpoint={driver.target()}", "--output=json"),
                *("--kubelet-root=/nonexistent", "--direct-volumes-root=/nonexistent/volumes"),
                "--hypervisor-socket=/nonexistent/socket",
            ],
            env={"PATH": os.environ["PATH"], **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)["results"]
    fine = {one["check"] for one in results if one["verdict"] == "ok"}
    assert fine == {"csi-socket", "plugin-version", "cloud-access"}
    assert {one["verdict"] for one in results if one["check"] not in fine} == {"skipped"}
    assert all(one["saw"] for one in results)


def test_what_is_not_asked_for_is_not_imported() -> None:
    """The node's image has neither an SDK nor a Kubernetes client; and the command starts at once."""
    program = "import sys; import cli.doctor.command, cli.inspect.command; print(*sorted(sys.modules))"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    heavy = {"boto3", "azure", "libvirt", "kubernetes", "yaml"}
    assert {name.split(".")[0] for name in printed} & heavy == set()
