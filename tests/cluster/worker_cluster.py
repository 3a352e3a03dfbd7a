"""A cluster of its own for tests that need the real kubelet: other tests' objects would be in the way."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import chart_images
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs import Programs
from tests.cluster.worker import Worker
from tests.tools.own_folders import own_folder


@contextmanager
def cluster_with_worker(
    provider: str, programs: Programs, services: Mapping[str, int] | None = None
) -> Iterator[tuple[ControlPlane, Worker]]:
    """A control plane and one worker that has the images of ``provider``; ``services`` as for the worker."""
    with own_folder("cluster") as state, own_folder("images", Path(tempfile.gettempdir())) as folder:
        images = chart_images.images(provider, programs, folder)
        with (
            ControlPlane(programs, state) as control_plane,
            Worker(control_plane, images, services) as worker,
        ):
            yield control_plane, worker
