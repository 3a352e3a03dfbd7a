"""What happens in the driver, told to whoever counts it (``metrics.py``, if it is switched on)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from providers.observation import ProviderObserver


class CheckResult(Enum):
    """What a background check of the backend found."""

    SERVED = "ok"
    REFUSED = "refused"
    """Credentials, permissions or settings are wrong: a person must act."""
    UNREACHABLE = "unreachable"
    """It passes by itself."""


@dataclass(frozen=True)
class VolumeKind:
    """Volumes that are counted together."""

    state: str
    """``attached`` to a machine, ``published`` to a node, or ``available``."""
    encryption: str
    """``luks2``, or ``none``."""

    @classmethod
    def all(cls) -> tuple[VolumeKind, ...]:
        """Every kind there is."""
        states = ("attached", "published", "available")
        return tuple(cls(state, encryption) for state in states for encryption in ("luks2", "none"))


@dataclass(frozen=True)
class VolumeCount:
    """How many volumes, and how many bytes they have in all."""

    volumes: int = 0
    size_bytes: int = 0


class Observer(ProviderObserver):
    """Is told what happens, and does nothing; :class:`driver.metrics.Metrics` counts. Never raises."""

    def rpcs_offered(self, methods: Iterable[str]) -> None:
        """These RPCs can come in from now on; each as ``Controller/CreateVolume``."""

    def rpc_began(self, method: str) -> None:
        """An RPC came in; ``method`` as above."""

    def rpc_ended(self, method: str, code: str, seconds: float) -> None:
        """It was answered with the gRPC ``code``, by its name."""

    def record_written(self, *, done: bool) -> None:
        """A publish wrote ``mountInfo.json``, or failed to."""

    def record_removed(self, *, done: bool) -> None:
        """An unpublish removed it, or failed to."""

    def backend_checked(self, result: CheckResult, *, ready: bool) -> None:
        """The backend was asked whether it serves this process; ``ready`` is what Probe answers now."""

    def volumes_counted(self, counts: Mapping[VolumeKind, VolumeCount], abnormal: int) -> None:
        """The provider listed its volumes; ``abnormal`` is how many of them it says are not well."""

    def volumes_not_counted(self) -> None:
        """The provider could not list its volumes."""
