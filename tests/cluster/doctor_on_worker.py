"""The doctor as a person runs it on a worker: as root, with a kubeconfig and the controller's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.healthy_cluster import SYSTEM, cloud_api_adaptor
from tests.cluster.installation import LocalInstallation
from tests.cluster.worker import Worker
from tests.tools.driver_process import COMMAND
from tests.unit.cli.doctor.healthy_node import listening

_HYPERVISOR_SOCKET = "/run/peerpod/hypervisor.sock"


class Doctor:
    """Runs ``confidential-csi doctor`` on a worker."""

    def __init__(self, worker: Worker, kubeconfig: Path, kata_config: Path) -> None:
        self._worker = worker
        self._kubeconfig = kubeconfig
        self._kata_config = kata_config

    def examine(self) -> dict[str, str]:
        """Each check's verdict, by its id; for what is wrong, its words."""
        options = [f"--kubeconfig={self._kubeconfig}", f"--kata-config={self._kata_config}"]
        options += ["--provider=local", "--output=json", f"--node-name={self._worker.name}"]
        # It ends with 3 or 4 when it found something.
        script = 'CONFIDENTIAL_CSI_LOCAL_DIRECTORY=/var/disks "$@" || test $? -gt 2'
        printed = self._worker.run("sh", "-c", script, "doctor", COMMAND, "doctor", *options)
        results: list[dict[str, Any]] = json.loads(printed)["results"]
        return {
            one["check"]: one["verdict"]
            if one["verdict"] in ("ok", "skipped")
            else f"{one['saw']}: {one['fix']}"
            for one in results
        }

    def problems(self) -> dict[str, str]:
        """What is neither fine nor skipped."""
        return {check: said for check, said in self.examine().items() if said not in ("ok", "skipped")}


@contextmanager
def doctor_on(installation: LocalInstallation) -> Iterator[Doctor]:
    """A doctor for the worker of an installation; within the block, what it looks for of Kata is there."""
    worker, api = installation.worker, installation.api
    adaptor = cloud_api_adaptor()
    # Its image is not to be had here.
    adaptor["spec"]["template"]["spec"]["nodeSelector"] = {"no": "node"}
    api.create({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": SYSTEM}})
    api.create(adaptor)
    config = json.loads(installation.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://10.96.0.1:443"
    kubeconfig, kata_config = worker.folder / "doctor.kubeconfig", worker.folder / "configuration-remote.toml"
    kubeconfig.write_text(json.dumps(config))
    kata_config.write_text(f'[hypervisor.remote]\nremote_hypervisor_socket = "{_HYPERVISOR_SOCKET}"\n')
    socket = worker.outside(_HYPERVISOR_SOCKET)
    try:
        with listening(socket):
            yield Doctor(worker, kubeconfig, kata_config)
    finally:
        socket.unlink()
        api.delete("Namespace", SYSTEM)
