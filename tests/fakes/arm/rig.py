"""A provider on a cloud of its own, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from azure.core.credentials import AccessToken

from providers.azure import AzureProvider
from providers.azure.places import Place
from providers.azure.settings import Settings, Timings
from providers.deadline import Deadline
from providers.interface import ContentSource, Encryption, Volume, VolumeRequest
from tests.fakes.arm.cloud import ArmCloud
from tests.fakes.arm.messages import Json
from tests.fakes.arm.server import TOKEN
from tests.fakes.arm.wire import transport

GIB = 1 << 30
LUKS = Encryption("luks2", "default/key/1")
TIMINGS = Timings(first_pause=0.001, longest_pause=0.01, answer=5, consistency=0.2, snapshot=0.0)


class FakeCredential:
    """A credential with the token that the fake takes."""

    def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        """The token."""
        assert scopes
        assert all(scope.endswith("/.default") for scope in scopes)
        return AccessToken(TOKEN, 2**40)


@dataclass
class Rig:
    """A cloud, and controllers that know nothing of each other."""

    cloud: ArmCloud = field(default_factory=ArmCloud)
    group: str = "disks"

    def settings(self, **changes: Any) -> Settings:
        """A controller's."""
        usual = Settings(
            Place(self.cloud.subscription, self.group),
            location="westeurope",
            cluster_id="c1",
            timings=TIMINGS,
        )
        return replace(usual, **changes)

    def provider(self, **changes: Any) -> AzureProvider:
        """A new controller's provider."""
        return AzureProvider(self.settings(**changes), FakeCredential(), lambda: transport(self.cloud.handle))

    def add_disk(self, name: str, tags: Mapping[str, str] | None = None, **fields: Any) -> Json:
        """A disk that is simply there, made by others."""
        body: Json = {
            "location": "westeurope",
            "sku": {"name": "StandardSSD_LRS"},
            "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 4},
            **fields,
        }
        if tags is not None:
            body["tags"] = dict(tags)
        return self.cloud.add("disks", self.group, name, body)


def soon(seconds: float = 30.0) -> Deadline:
    """Enough time."""
    return Deadline.after(seconds)


def asked(
    name: str = "pvc-1",
    gib: int = 4,
    parameters: Mapping[str, str] | None = None,
    *,
    source: ContentSource | None = None,
    zones: tuple[str, ...] = (),
) -> VolumeRequest:
    """A request."""
    return VolumeRequest(
        name, gib * GIB, LUKS, "ext4", parameters=parameters or {}, source=source, zones=zones
    )


def create(provider: AzureProvider, name: str = "pvc-1", gib: int = 4, **more: Any) -> Volume:
    """Create what :func:`asked` describes."""
    return provider.create_volume(asked(name, gib, **more), soon())
