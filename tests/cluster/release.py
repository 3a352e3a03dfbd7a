"""Our chart in the cluster, installed by the real Helm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from deploy.manifests import CHART
from tests.cluster.control_plane import ControlPlane
from tests.tools.go_programs import go_program

RELEASE = "confidential-csi"
_HOME = "kube-system"


class Release:
    """One release of the chart; its pods run once there are workers."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane

    def install(self, values: Mapping[str, object], *, wait: bool = True) -> str:
        """Install, or upgrade to these values (and the chart's for the rest); what Helm printed."""
        waiting = ["--wait", "--timeout=300s"] if wait else []
        return self.helm("upgrade", "--install", RELEASE, str(CHART), *waiting, values=values)

    def uninstall(self) -> str:
        """Uninstall, and wait until its objects are gone."""
        return self.helm("uninstall", RELEASE, "--wait", "--timeout=300s", "--cascade=foreground")

    def helm(self, *arguments: str, values: Mapping[str, object] | None = None) -> str:
        """Run Helm with the cluster's administrator; what it printed.

        Raises:
            AssertionError: it failed.
        """
        command = [str(go_program("helm")), f"--kubeconfig={self._control_plane.kubeconfig}"]
        command += [f"--namespace={_HOME}", *arguments]
        if values is not None:
            command.append("--values=-")
        done = subprocess.run(
            command,
            input=json.dumps(values or {}),
            env=self._control_plane.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout
