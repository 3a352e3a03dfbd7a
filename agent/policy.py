"""The volume policy: what the owner of the workload allows, in place of believing the host.

A policy is measured (initdata, or the image) or released by the key broker, so the host can't choose it. It
names the places in the container where volumes belong, and what each volume must be. Without one, the
built-in default holds: every volume is encrypted, and nothing that this agent did not make is believed.
How it is written: ``agent/policy_schema.py`` and ``docs/policy.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.annotation import CloudVolume
from agent.errors import Refused, shown

_MAX_NAMED: Final = 5


class Encryption(StrEnum):
    """What a volume must be. The words are the schema's."""

    LUKS2 = "luks2"
    NONE = "none"


class Format(StrEnum):
    """Whether a blank disk may become a volume. The words are the schema's."""

    NEVER = "never"
    IF_BLANK = "if-blank"


class Measurement(StrEnum):
    """Whether volumes may be opened without being measured. The words are the schema's."""

    REQUIRED = "required"
    IF_ENABLED = "if-enabled"


@dataclass(frozen=True)
class VolumeRules:
    """What one volume must be, and what may be done with it. The defaults are the built-in policy's."""

    encryption: Encryption = Encryption.LUKS2
    key_id: str | None = None
    """The KBS path of the key; None: the one that the annotation names."""
    previous_key_id: str | None = None
    """Where the key before the last rotation is."""
    minimum_size: int = 0
    """Bytes that the disk has at least."""
    luks_uuid: str | None = None
    """None: any."""
    format: Format = Format.IF_BLANK
    adopt: bool = False
    """Whether a LUKS2 header without a record of ours is believed, if the key opens it."""
    read_only: bool = False
    fs_group: int | None = None
    """The group that owns the volume's root; None: the one of the annotation, if any."""
    discard: bool = False
    """Whether freed blocks are told to the host."""

    def require_size(self, size: int) -> None:
        """Raises Refused (``policy-size``) if the disk, of ``size`` bytes, is too small."""
        if size < self.minimum_size:
            raise Refused(
                "policy-size", f"the disk has {size} bytes; the policy demands at least {self.minimum_size}"
            )

    def require_uuid(self, luks_uuid: str) -> None:
        """Raises Refused (``policy-uuid``) if the volume is another one than the policy pins."""
        if self.luks_uuid is not None and luks_uuid != self.luks_uuid:
            raise Refused(
                "policy-uuid",
                f"the disk is the volume with LUKS UUID {luks_uuid}; the policy demands {self.luks_uuid}",
            )

    def require_format(self) -> None:
        """Raises Refused (``format-forbidden``) if a new filesystem must not be made."""
        if self.format is Format.NEVER:
            raise Refused(
                "format-forbidden",
                "the disk holds no filesystem yet, but the policy says that the volume exists already "
                "(format never, a pinned uuid, or read-only); check that it is the right disk",
            )


@dataclass(frozen=True)
class AgentRules:
    """What holds for all volumes alike. The defaults are the built-in policy's."""

    measurement: Measurement = Measurement.IF_ENABLED
    """What to do where the Attestation Agent does not extend runtime measurements (``agent.measurement``)."""
    usage_figures: bool = True
    """Whether the host, which asks for volume statistics, is told how full a volume is."""


@dataclass(frozen=True)
class Policy:
    """The rules by mount destination.

    ``volumes`` is None in the built-in default, which applies to each volume of the annotation. A policy
    that was found must name everything that the annotation brings.
    """

    volumes: Mapping[str, VolumeRules] | None
    other_mounts: frozenset[str] = frozenset()
    """Destinations for what is no volume, which would be refused if they were not named
    (``agent.container_mounts``)."""
    agent: AgentRules = AgentRules()


DEFAULT_POLICY: Final = Policy(None)


def rules_for(policy: Policy, volumes: Sequence[CloudVolume]) -> dict[str, VolumeRules]:
    """The rules that the mount of each volume must enforce, by the volume's name.

    What the annotation alone can break is checked here; what needs the disk is left to the mount.

    Raises:
        Refused: ``policy-destination`` (the policy does not name the volume's mount point),
            ``encryption-required``, ``encryption-unexpected`` or ``policy-key``, naming the volume.
    """
    return {volume.name: _rules(policy, volume) for volume in volumes}


def _rules(policy: Policy, volume: CloudVolume) -> VolumeRules:
    if policy.volumes is None:
        rules: VolumeRules | None = VolumeRules()
    else:
        rules = policy.volumes.get(volume.mount_point)
    if rules is None:
        raise Refused(
            "policy-destination",
            f"the policy does not name {shown(volume.mount_point)}, where {volume.name} is to be mounted; "
            f"it names {_listed(policy.volumes or ())}",
        )
    if rules.encryption is Encryption.NONE and volume.encrypted:
        raise Refused(
            "encryption-unexpected",
            f"{volume.name} comes as an encrypted volume, but the policy says that what is mounted at "
            f"{shown(volume.mount_point)} is not; remove encrypt-type from its StorageClass, or change "
            "the policy",
        )
    if rules.encryption is Encryption.LUKS2 and not volume.encrypted:
        raise Refused(
            "encryption-required",
            f"{volume.name} comes without encrypt_type and key_id; only encrypted volumes are mounted at "
            f"{shown(volume.mount_point)}: set encrypt-type and kbs-key-id in its StorageClass",
        )
    if volume.encrypted and rules.key_id is not None and volume.key_id != rules.key_id:
        raise Refused(
            "policy-key",
            f"{volume.name} comes with the key {volume.key_id}, but the policy says that the key of "
            f"{shown(volume.mount_point)} is {rules.key_id}",
        )
    return rules


def _listed(destinations: Collection[str]) -> str:
    named = [shown(destination) for destination in sorted(destinations)[:_MAX_NAMED]]
    more = len(destinations) - len(named)
    return (", ".join(named) or "none") + (f" and {more} more" if more else "")
