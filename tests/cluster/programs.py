"""Builds Kubernetes and its CSI sidecars from the Go module proxy, outside the repository.

``python -m tests.cluster.programs`` builds what the cache lacks and prints its folder. What is built is
pinned by ``programs/go.mod`` and ``go.sum``; the folder's name is a hash of both.

node-driver-registrar and livenessprobe are not served by the public module proxy as modules that may be
built, so they have stand-ins.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.tools.go_programs import CACHE, run_go
from tests.tools.own_folders import own_folder

_MODULE = Path(__file__).with_name("programs")
_CRDS = "github.com/kubernetes-csi/external-snapshotter/client/v8"

#: Image name in the chart to the program that it runs.
SIDECARS = ("csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter")


@dataclass(frozen=True)
class Programs:
    """A folder of built programs."""

    folder: Path

    def __getitem__(self, name: str) -> Path:
        """The program of that name, as ``kube-apiserver``."""
        return self.folder / name

    @property
    def snapshot_crds(self) -> list[Path]:
        """The definitions of VolumeSnapshot, its content and its class, as the snapshotter publishes them."""
        return sorted(self.folder.glob("crds/snapshot.storage.k8s.io_volumesnapshot*.yaml"))


def kubernetes_version() -> str:
    """The version of Kubernetes that is built, as ``v1.36.1``."""
    found = re.search(r"^\tk8s\.io/kubernetes (v\S+)$", (_MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def programs() -> Programs:
    """The built programs; they are built if the cache lacks them (some ten minutes on two processors).

    Raises:
        subprocess.CalledProcessError: a build failed.
    """
    pinned = b"".join((_MODULE / name).read_bytes() for name in ("go.mod", "go.sum", "programs.go"))
    folder = CACHE / f"kubernetes-{hashlib.sha256(pinned).hexdigest()[:16]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with own_folder("scratch", folder.parent) as scratch:
            _build(scratch / "programs")
            (scratch / "programs").rename(folder)
    return Programs(folder)


def _build(into: Path) -> None:
    into.mkdir()
    packages = re.findall(r'^\t_ "(.+)"$', (_MODULE / "programs.go").read_text(), re.MULTILINE)
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    stamp = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamps.items())
    _go("build", "-trimpath", "-buildvcs=false", f"-ldflags=-s -w {stamp}", "-o", f"{into}/", *packages)
    crds = Path(_go("list", "-m", "-f", "{{.Dir}}", _CRDS).strip()) / "config" / "crd"
    (into / "crds").mkdir()
    for definition in crds.glob("*.yaml"):
        shutil.copyfile(definition, into / "crds" / definition.name)


def _go(*arguments: str) -> str:
    return run_go(*arguments, folder=_MODULE, GOFLAGS="-mod=readonly")


if __name__ == "__main__":
    print(programs().folder)
