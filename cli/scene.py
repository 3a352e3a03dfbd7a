"""Where a tool stands and what it can reach: paths of a node, a cluster, a cloud."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import click

from cli.kubernetes_api import Json, KubernetesApi, NoAnswer
from driver.direct_volumes import DEFAULT_ROOT as DIRECT_VOLUMES_ROOT
from driver.direct_volumes import DirectVolumes
from providers.deadline import Deadline
from providers.errors import ConfigurationError, ProviderError
from providers.interface import BlockVolumeProvider, Volume, VolumeLister
from providers.registry import load_provider

DRIVER: Final = "caa-csi-block.csi.confidentialcontainers.io"
#: kubelet's, unless it was started with another --root-dir.
KUBELET_ROOT: Final = Path("/var/lib/kubelet")
#: cloud-api-adaptor's, for Kata's runtime (``DefaultSocketPath`` in its ``pkg/adaptor/server.go``).
HYPERVISOR_SOCKET: Final = Path("/run/peerpod/hypervisor.sock")
#: Where kata-deploy and distributions put the configuration of the remote hypervisor.
KATA_CONFIGS: Final = (
    Path("/opt/kata/share/defaults/kata-containers/runtimes/remote/configuration-remote.toml"),
    Path("/opt/kata/share/defaults/kata-containers/configuration-remote.toml"),
    Path("/etc/kata-containers/configuration-remote.toml"),
    Path("/usr/share/kata-containers/defaults/configuration-remote.toml"),
)
#: Of cloud-api-adaptor's RuntimeClass (its ``install/`` and ``webhook/``).
PEER_POD_HANDLERS: Final = frozenset({"kata-remote"})
_CONTAINER_SOCKET: Final = Path("/csi/csi.sock")
_CLOUD_SECONDS: Final = 60.0


class Skipped(Exception):
    """Raised where something can't be looked at from here; the message says why. Nothing follows from it."""


@dataclass(frozen=True)
class Paths:
    """The places on a node."""

    endpoint: Path | None = None
    """The driver's socket; None: where it usually is."""
    kubelet_root: Path = KUBELET_ROOT
    direct_volumes: Path = DIRECT_VOLUMES_ROOT
    hypervisor_socket: Path = HYPERVISOR_SOCKET
    kata_configs: tuple[Path, ...] = KATA_CONFIGS
    proc: Path = Path("/proc")

    @property
    def socket(self) -> Path:
        """The driver's socket: as given, in a container of ours, or as a node has it."""
        if self.endpoint is not None:
            return self.endpoint
        on_node = self.kubelet_root / "plugins" / DRIVER / "csi.sock"
        return _CONTAINER_SOCKET if _CONTAINER_SOCKET.exists() else on_node

    def is_node(self) -> bool:
        """Whether this looks like a node: one of the places is there."""
        return any(
            place.exists() for place in (self.kubelet_root, self.direct_volumes, self.hypervisor_socket)
        )


@dataclass(frozen=True)
class Cloud:
    """A provider, and what it was asked already."""

    provider: BlockVolumeProvider

    def deadline(self) -> Deadline:
        """For one question."""
        return Deadline.after(_CLOUD_SECONDS)

    @cached_property
    def _listing(self) -> tuple[Volume, ...] | ProviderError:
        if not isinstance(self.provider, VolumeLister):
            return ProviderError(f"the provider {self.provider.name!r} can't list volumes")
        try:
            return self.provider.list_volumes(0, "", self.deadline()).items
        except ProviderError as error:
            return error

    def volumes(self) -> tuple[Volume, ...]:
        """All volumes that this driver made.

        Raises:
            ProviderError: they can't be listed.
        """
        if isinstance(self._listing, ProviderError):
            raise self._listing
        return self._listing


@dataclass(frozen=True)
class Scene:
    """What can be looked at. ``cluster`` and ``cloud`` are the reason, as text, if there is none."""

    paths: Paths
    cluster: KubernetesApi | str
    cloud: Cloud | str
    cluster_wanted: bool = False
    """A cluster was named, or there is a kubeconfig: not to reach it is a fault."""
    cloud_wanted: bool = False
    """A provider was named: not to load it is a fault."""
    node_name: str = ""
    """This Kubernetes node, if it is one and its name is known."""
    peer_pod_handlers: frozenset[str] = PEER_POD_HANDLERS
    """Handlers of the RuntimeClasses whose pods are peer pods."""
    now: Callable[[], float] = field(default=time.time)
    """Seconds since the epoch."""

    @cached_property
    def records(self) -> DirectVolumes:
        """The node's direct volumes."""
        return DirectVolumes(self.paths.direct_volumes)

    def require_node(self) -> None:
        """Return on a node.

        Raises:
            Skipped: this is none.
        """
        if not self.paths.is_node():
            raise Skipped(
                f"this is no node: neither {self.paths.kubelet_root} nor {self.paths.direct_volumes} is here"
            )

    def require_records(self) -> Path:
        """The direct-volume root, if it can be looked into.

        Raises:
            Skipped: this is no node, or there is no such directory.
        """
        self.require_node()
        if not self.paths.direct_volumes.is_dir():
            raise Skipped(f"{self.paths.direct_volumes} is not a directory")
        return self.paths.direct_volumes

    def require_cluster(self) -> KubernetesApi:
        """The cluster.

        Raises:
            Skipped: there is none.
        """
        if isinstance(self.cluster, str):
            raise Skipped(self.cluster)
        return self.cluster

    def objects(self, path: str) -> tuple[Json, ...]:
        """A list of the cluster's.

        Raises:
            Skipped: it can't be had.
        """
        try:
            return self.require_cluster().items(path)
        except NoAnswer as error:
            raise Skipped(str(error)) from None

    def object(self, path: str) -> Json | None:
        """One object of the cluster's; None if there is none.

        Raises:
            Skipped: it can't be had.
        """
        try:
            answer = self.require_cluster().get(path)
        except NoAnswer as error:
            raise Skipped(str(error)) from None
        return None if answer is None else answer.document

    def require_cloud(self) -> Cloud:
        """The cloud.

        Raises:
            Skipped: there is none.
        """
        if isinstance(self.cloud, str):
            raise Skipped(self.cloud)
        return self.cloud

    def volumes(self) -> tuple[Volume, ...]:
        """The cloud's volumes of this driver.

        Raises:
            Skipped: they can't be listed.
        """
        try:
            return self.require_cloud().volumes()
        except ProviderError as error:
            raise Skipped(f"volumes can't be listed: {cause(error)}") from None


def cause(error: Exception) -> str:
    """What a provider or the driver says, but for its word to the sidecars: a command asks once."""
    return str(error).removesuffix("; it is tried again")


def cluster_of(kubeconfig: Path | None, context: str | None) -> KubernetesApi | str:
    """The cluster that options or the surroundings name; else why there is none."""
    try:
        return KubernetesApi.connect(kubeconfig, context)
    except NoAnswer as error:
        return str(error)


def cloud_of(provider: str | None) -> Cloud | str:
    """The cloud of that name, with the settings of the environment; else why there is none."""
    if provider is None:
        return "no cloud was named: give --provider, and the controller's settings in the environment"
    try:
        return Cloud(load_provider(provider, os.environ))
    except ConfigurationError as error:
        return str(error)


provider_option = click.option(
    "--provider",
    envvar="CONFIDENTIAL_CSI_PROVIDER",
    show_envvar=True,
    help="Cloud to look at, with the controller's settings in the environment; else it is left out.",
)
