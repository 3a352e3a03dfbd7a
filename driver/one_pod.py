"""One pod with volumes at a time on a node, because of how cloud-api-adaptor (CAA) finds a pod's volumes.

Kata does not tell CAA the pod's UID when it asks for a PodVM, so CAA gives each new PodVM every volume that
is published on the node, and the pod that comes second can't start (docs/one-pod-per-node.md). Refusing its
publish says so before a VM is paid for.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from driver.direct_volumes import DirectVolumes, pod_directory
from driver.errors import Aborted, FailedPrecondition


class OnePodWithVolumes:
    """Lets through publishes of one pod at a time: of any number of its volumes, also at once.

    What is published is read from the records each time; only calls in progress are known to this process.
    """

    def __init__(self, volumes: DirectVolumes) -> None:
        self._volumes = volumes
        self._mutex = threading.Lock()
        self._publishing: Counter[str] = Counter()
        """Pod directory to the number of its publishes in progress; of one pod at a time."""

    @contextmanager
    def hold(self, target_path: str) -> Iterator[None]:
        """The block may write the record of ``target_path``: no other pod has one, or is getting one.

        Paths that are not as kubelet's are let through, and count for nothing: CAA passes over them.

        Raises:
            FailedPrecondition: another pod's volume is published on this node.
            Aborted: another pod's volume is being published.
        """
        pod = pod_directory(target_path)
        if pod is None:
            yield
            return
        with self._mutex:
            if self._publishing.keys() - {pod}:
                raise Aborted("a volume of another pod is being published on this node; try again")
            self._publishing[pod] += 1
        try:
            self._refuse_beside_another(pod)
            yield
        finally:
            with self._mutex:
                self._publishing[pod] -= 1
                self._publishing += Counter()  # forgets the pod when its last call has ended

    def _refuse_beside_another(self, pod: str) -> None:
        for path in self._volumes.target_paths():
            other = pod_directory(path)
            if other is None or other == pod:
                continue
            volume = path.removeprefix(other).split("/")[3]
            what = f"volume {volume[:80]} of the pod with uid {Path(other).name[:64]}"
            if Path(other).is_dir():
                raise FailedPrecondition(
                    f"{what} is published on this node, and cloud-api-adaptor would attach it to this pod's "
                    "VM, too, so one pod with volumes at a time can run on a node; this pod starts when the "
                    "other is gone; better, keep them on different nodes (docs/one-pod-per-node.md)"
                )
            raise FailedPrecondition(
                f"{what} is published on this node, and cloud-api-adaptor would attach it to this pod's VM, "
                f"too; that pod's directory {other[:200]} is gone, so kubelet will not unpublish it: make "
                "sure that its VM is gone, then remove the record (docs/one-pod-per-node.md)"
            )
