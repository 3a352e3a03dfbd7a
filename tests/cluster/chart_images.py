"""The images of the chart's pods, and the values by which it uses them.

Our own are built by the Dockerfile; a sidecar's holds the real program that the module proxy gave. Two
it does not give: ``tests/peers/node-sidecars`` stands in for node-driver-registrar and livenessprobe.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.cluster.image_archives import image_archives
from tests.cluster.oci import Image, layer_of_files, write_archive
from tests.cluster.programs import Programs
from tests.peers import peer_program

_REGISTRY = "confidential-csi.test/"
_TAG = "0.1.0"

#: The chart's name of a sidecar to its program.
_SIDECARS = {
    "provisioner": "csi-provisioner",
    "attacher": "csi-attacher",
    "resizer": "csi-resizer",
    "snapshotter": "csi-snapshotter",
}
_STAGES = ("node", "controller", "controller-aws")
_STAND_INS = ("registrar", "livenessprobe")

#: Values of the chart.
VALUES: Mapping[str, object] = {
    "image": {"prefix": _REGISTRY, "tag": _TAG, "pullPolicy": "Never"},
    "sidecars": {name: f"{_REGISTRY}{name}:{_TAG}" for name in (*_SIDECARS, *_STAND_INS)},
}


def own_images() -> dict[str, Path]:
    """Archives of our images, by their stages in the Dockerfile: the node plugin, and two controllers."""
    return image_archives({stage: f"{_REGISTRY}confidential-csi-{stage}:{_TAG}" for stage in _STAGES})


def images(provider: str, programs: Programs, folder: Path) -> list[Path]:
    """Archives of what the chart runs with ``local`` or ``aws``; the sidecars' are made in ``folder``."""
    own = own_images()
    controller = own["controller" if provider == "local" else f"controller-{provider}"]
    return [own["node"], controller, _sidecars(provider, programs, folder)]


def _sidecars(provider: str, programs: Programs, folder: Path) -> Path:
    made = []
    for name, program in _SIDECARS.items():
        if provider == "local" and name == "attacher":
            continue  # it is no fence
        layer = layer_of_files(folder / f"{name}.tar", {f"/{program}": programs[program]})
        made.append(Image(f"{_REGISTRY}{name}:{_TAG}", [layer], [f"/{program}"]))
    layer = layer_of_files(folder / "stand-ins.tar", {"/node-sidecars": peer_program("node-sidecars")})
    for name in _STAND_INS:
        made.append(Image(f"{_REGISTRY}{name}:{_TAG}", [layer], ["/node-sidecars", name]))
    archive = folder / "sidecars.tar"
    write_archive(archive, made)
    return archive


if __name__ == "__main__":
    peer_program("node-sidecars")
    print(*own_images().values(), sep="\n")
