"""The chart as Helm renders it."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from typing import Any

import yaml

from deploy.manifests import CHART, KUBE_VERSION, REQUIRED
from tests.tools.go_programs import go_program

_HOOK = "helm.sh/hook"

#: Provider to the values without which its chart does not render.
_OPTIONAL = {"clusterId", "aws.region"}
MINIMAL = {
    provider: {name: value for name, value in values.items() if name not in _OPTIONAL}
    for provider, values in REQUIRED.items()
} | {"local": {"provider": "local", "local.claimName": "disks"}}


class Refused(Exception):
    """Helm refused; its message."""


@cache
def rendered(provider: str, *values: str, what: str = "set-json") -> str:
    """What Helm prints for ``provider``, with further ``key=value``.

    Raises:
        Refused: it does not render.
    """
    command = [str(go_program("helm")), "template", "confidential-csi", str(CHART)]
    command.append(f"--kube-version={KUBE_VERSION}")
    command += [f"--set-json={key}={json.dumps(value)}" for key, value in MINIMAL[provider].items()]
    command += [f"--{what}={value}" for value in values]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


@cache
def objects(provider: str, *values: str) -> list[dict[str, Any]]:
    """The objects in it, the tests' left out. Not to be changed: callers share them."""
    return [entry for entry in _all(provider, *values) if _HOOK not in _annotations(entry)]


def made_by_helm_test(provider: str, *values: str) -> list[dict[str, Any]]:
    """What ``helm test`` makes. Not to be changed either."""
    return [entry for entry in _all(provider, *values) if _annotations(entry).get(_HOOK) == "test"]


@cache
def _all(provider: str, *values: str) -> list[dict[str, Any]]:
    # The loader in C takes a tenth of the time.
    parsed = yaml.load_all(rendered(provider, *values), Loader=yaml.CSafeLoader)
    return [entry for entry in parsed if entry]


def _annotations(entry: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = entry["metadata"].get("annotations", {})
    return found


def one(provider: str, kind: str, *values: str) -> dict[str, Any]:
    """The only object of that kind."""
    (found,) = (entry for entry in objects(provider, *values) if entry["kind"] == kind)
    return found


def pod(provider: str, kind: str, *values: str) -> dict[str, Any]:
    """The pod's specification of the only Deployment or DaemonSet."""
    specification: dict[str, Any] = one(provider, kind, *values)["spec"]["template"]["spec"]
    return specification


def container(provider: str, kind: str, name: str, *values: str) -> dict[str, Any]:
    """One of its containers."""
    (found,) = (entry for entry in pod(provider, kind, *values)["containers"] if entry["name"] == name)
    result: dict[str, Any] = found
    return result
