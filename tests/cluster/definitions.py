"""Definitions of kinds that a cluster has from others: OpenShift's, and Prometheus Operator's.

They are files in Go modules, which the module proxy serves; each module is pinned with its hash.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.tools.go_programs import go_command

#: Module to its hash, as go.sum has it, and the file in it.
_FILES = {
    "github.com/openshift/api@v0.0.0-20251015095338-264e80a2b6e7": (
        "h1:Ot2fbEEPmF3WlPQkyEW/bUCV38GMugH/UmZvxpWceNc=",
        "payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints.crd.yaml",
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    ),
}


def foreign_definitions() -> list[Path]:
    """The files, which are downloaded if Go's module cache lacks them.

    Raises:
        subprocess.CalledProcessError: a module can't be had.
    """
    return [_file(module, *pinned) for module, pinned in _FILES.items()]


def _file(module: str, pinned_hash: str, name: str) -> Path:
    command: list[str | Path] = [go_command(), "mod", "download", "-json", module]
    # Outside of any module's folder, so that none has a say.
    done = subprocess.run(command, cwd="/", check=True, stdout=subprocess.PIPE, text=True)
    got = json.loads(done.stdout)
    assert got["Sum"] == pinned_hash, f"{module} is not what it was"
    return Path(got["Dir"], name)
