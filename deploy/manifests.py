"""Renders the chart into the plain manifests in ``deploy/``, and the table in ``docs/security.md`` from them.

``make manifests`` runs it; a test fails when what is committed differs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from deploy import security_table

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "charts" / "confidential-csi"
SECURITY_PAGE = DEPLOY.parent / "docs" / "security.md"

#: The Kubernetes that charts are rendered for: VolumeAttributesClass is in its storage.k8s.io/v1.
KUBE_VERSION = "1.34.0"

#: Provider to what its manifests say; the values in capitals are for the reader to replace.
REQUIRED = {
    "aws": {"provider": "aws", "clusterId": "CLUSTER", "aws.region": "REGION"},
    "azure": {
        "provider": "azure",
        "clusterId": "CLUSTER",
        "azure.subscriptionId": "00000000-0000-0000-0000-000000000000",
        "azure.resourceGroup": "RESOURCE-GROUP",
    },
    "libvirt": {
        "provider": "libvirt",
        "libvirt.uri": "qemu+ssh://root@HOST/system?keyfile=/etc/libvirt-ssh/id",
        "libvirt.sshSecret": "libvirt-ssh",
    },
}

#: Template to the manifest's name. ``CLOUD`` stands for the provider; without it, clouds share the manifest.
_NAMES = {
    "namespaces.yaml": "namespace.yaml",
    "csi-driver.yaml": "csi-driver.yaml",
    "volumesnapshotclass.yaml": "volumesnapshotclass.yaml",
    "admission.yaml": "admission-CLOUD.yaml",
    "controller.yaml": "controller-CLOUD.yaml",
    "daemonset.yaml": "daemonset-CLOUD.yaml",
    "storageclass.yaml": "storageclass-CLOUD.yaml",
    "storageclass-encrypted.yaml": "storageclass-CLOUD-encrypted.yaml",
    "volumeattributesclass.yaml": "volumeattributesclass-CLOUD.yaml",
}
#: libvirt has no zones and nothing to modify, so its sidecars need less.
_RBAC = {"aws": "rbac.yaml", "azure": "rbac.yaml", "libvirt": "rbac-libvirt.yaml"}

_HEADER = "# Made by `make manifests` from deploy/charts/confidential-csi; docs/install.md.\n"
_SOURCE = re.compile(r"^# Source: confidential-csi/templates/(.+)$", re.MULTILINE)


class Differs(Exception):
    """Clouds render a manifest differently that they should share."""


def render(helm: Path, provider: str) -> str:
    """The chart's objects for ``provider``, as Helm prints them.

    Raises:
        subprocess.CalledProcessError: Helm refused.
    """
    values = [f"--set={key}={value}" for key, value in REQUIRED[provider].items()]
    command = [str(helm), "template", "confidential-csi", str(CHART), "--skip-tests", *values]
    command += ["--set=volumeAttributesClass.enabled=true", f"--kube-version={KUBE_VERSION}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def manifests(rendered: dict[str, str]) -> dict[str, str]:
    """File name to content, from what was rendered for each provider.

    Raises:
        Differs: two providers disagree about a file that they share.
    """
    files: dict[str, str] = {}
    for provider, text in rendered.items():
        parts: dict[str, list[str]] = {}
        for document in re.split(r"^---\n", text, flags=re.MULTILINE):
            source = _SOURCE.match(document)
            if source is not None:
                body = document[source.end() :].strip()
                name = _RBAC[provider] if source[1] == "rbac.yaml" else _NAMES[source[1]]
                parts.setdefault(name.replace("CLOUD", provider), []).append(body)
        for name, bodies in parts.items():
            content = _HEADER + "---\n".join(body + "\n" for body in bodies)
            if files.setdefault(name, content) != content:
                raise Differs(f"{provider} renders {name} otherwise than the providers before it")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", type=Path, required=True)
    helm = parser.parse_args().helm
    rendered = {provider: render(helm, provider) for provider in REQUIRED}
    files = manifests(rendered)
    for old in DEPLOY.glob("*.yaml"):
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        (DEPLOY / name).write_text(content)
    SECURITY_PAGE.write_text(security_table.replaced(SECURITY_PAGE.read_text(), rendered))


if __name__ == "__main__":
    main()
