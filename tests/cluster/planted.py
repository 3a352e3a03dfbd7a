"""Runs the command on a cluster with secrets planted where it reads: in the kubeconfig, and of the cloud."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.cluster.healthy_cluster import Cluster
from tests.contract.aws_backend import REGION
from tests.tools.driver_process import COMMAND

_BEARER = "planted-bearer-of-the-kubeconfig"
_PLANTED = "planted-secret-of-the-cloud"


def run_with_secrets(cluster: Cluster, kubeconfig: Path, *arguments: str, expect: int) -> str:
    """Run ``confidential-csi`` on the cluster and its cloud; what it printed to standard output.

    Raises:
        AssertionError: its exit code is not ``expect``, or it printed a secret.
    """
    config = json.loads(kubeconfig.read_text())
    config["users"][0]["user"]["token"] = _BEARER
    with_token = cluster.folder / "with-token.json"
    with_token.write_text(json.dumps(config))
    done = subprocess.run(
        [COMMAND, *arguments, f"--kubeconfig={with_token}", "--provider=aws"],
        env={
            "PATH": os.environ["PATH"],
            "AWS_ENDPOINT_URL": cluster.backend.url,
            "AWS_ACCESS_KEY_ID": "AKIAPLANTED",
            "AWS_SECRET_ACCESS_KEY": _PLANTED,
            "CONFIDENTIAL_CSI_AWS_REGION": REGION,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == expect, printed
    assert _BEARER not in printed
    assert _PLANTED not in printed
    return done.stdout
