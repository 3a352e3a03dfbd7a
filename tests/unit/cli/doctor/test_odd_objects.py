"""Objects of a cluster that are not as the driver's own chart makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.doctor.catalog import CHECKS
from cli.doctor.model import Verdict, run
from cli.kubernetes_api import Json, KubernetesApi
from cli.kubernetes_objects import DEPLOYMENTS
from cli.scene import Paths, Scene


class Given(KubernetesApi):
    """A cluster of which only its Deployments are known."""

    def __init__(self, *deployments: Json) -> None:
        super().__init__(None)
        self._deployments = deployments

    def items(self, path: str) -> tuple[Json, ...]:
        return self._deployments if path == DEPLOYMENTS else ()


def _controller(*containers: Any) -> Json:
    labels = {"app.kubernetes.io/name": "confidential-csi", "app.kubernetes.io/component": "controller"}
    metadata = {"name": "c", "namespace": "n", "labels": labels}
    return {"metadata": metadata, "spec": {"template": {"spec": {"containers": list(containers)}}}}


def _found(*images: str) -> list[tuple[Verdict, str]]:
    containers = [{"name": str(number), "image": image} for number, image in enumerate(images)]
    scene = Scene(Paths(Path("/nonexistent")), Given(_controller(*containers)), "no cloud in this test")
    return [(one.verdict, one.saw) for one in run(_check("image-versions"), scene)]


def _check(check_id: str) -> Any:
    return next(check for check in CHECKS if check.id == check_id)


@pytest.mark.parametrize(
    ("images", "verdict"),
    [
        (("r:5000/a/confidential-csi-controller-aws:1.0", "confidential-csi-node:1.0"), Verdict.OK),
        (("r:5000/a/confidential-csi-controller-aws:1.0", "confidential-csi-node:1.1"), Verdict.WARN),
        (("a/confidential-csi-node:1.0@sha256:ab", "b/confidential-csi-node:1.0@sha256:cd"), Verdict.OK),
        (("a/confidential-csi-node@sha256:ab", "a/confidential-csi-controller@sha256:cd"), Verdict.SKIPPED),
        (("r:5000/other", "other:2"), Verdict.SKIPPED),
    ],
)
def test_versions_are_those_of_tags_and_not_of_digests(images: tuple[str, ...], verdict: Verdict) -> None:
    assert [one for one, _ in _found(*images)] == [verdict]


def test_an_object_that_nobody_foresaw_ends_its_check_alone() -> None:
    scene = Scene(Paths(Path("/nonexistent")), Given(_controller({"name": "no image"})), "no cloud here")
    (found,) = run(_check("image-versions"), scene)
    assert found.verdict is Verdict.FAIL
    assert "KeyError at cluster.py:" in found.saw
    assert "report" in found.fix
