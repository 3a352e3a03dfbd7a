"""What Azure lets this process do: its identity, by its own token, and the actions that its roles grant."""

from __future__ import annotations

import base64
import binascii
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from typing import Final

from azure.core.credentials import TokenCredential

from providers.azure.calls import Arm
from providers.azure.failures import NoAnswer, NotSent, Refused, as_provider_error
from providers.azure.places import Place
from providers.azure.sending import Json, send
from providers.deadline import Deadline
from providers.interface import BackendDiagnosis, Permission

#: Those of ``deploy/azure/role.json``.
NEEDED: Final = (
    "Microsoft.Compute/disks/read",
    "Microsoft.Compute/disks/write",
    "Microsoft.Compute/disks/delete",
    "Microsoft.Compute/disks/beginGetAccess/action",
    "Microsoft.Compute/snapshots/read",
    "Microsoft.Compute/snapshots/write",
    "Microsoft.Compute/snapshots/delete",
    "Microsoft.Compute/snapshots/beginGetAccess/action",
    "Microsoft.Compute/diskEncryptionSets/read",
    "Microsoft.Compute/locations/DiskOperations/read",
)
_PERMISSIONS: Final = "/subscriptions/{}/resourceGroups/{}/providers/Microsoft.Authorization/permissions"
_API_VERSION: Final = "2022-04-01"
_SECONDS: Final = 20.0
#: Claims of a token that name an application, its object and its tenant.
_CLAIMS: Final = (("appid", "application"), ("oid", "object"), ("tid", "tenant"))


@dataclass(frozen=True)
class Diagnosed:
    """Where to ask."""

    credential: TokenCredential
    endpoint: str
    places: Sequence[tuple[Place, Arm]]


class AzureDiagnosis(BackendDiagnosis):
    """The diagnosis of the configured resource groups."""

    @abstractmethod
    def _diagnosed(self) -> Diagnosed:
        """The resource groups, and the identity that asks."""

    def identity(self, deadline: Deadline) -> str:
        diagnosed = self._diagnosed()
        scope = f"{diagnosed.endpoint}/.default"
        try:
            token = send(lambda _sending: diagnosed.credential.get_token(scope).token, _SECONDS, deadline)
        except (Refused, NotSent, NoAnswer) as error:
            raise as_provider_error("getting a token", error) from error
        claims = _claims(token)
        named = [f"{word} {claims[name]}" for name, word in _CLAIMS if isinstance(claims.get(name), str)]
        return ", ".join(named) or "an identity that its token does not name"

    def permissions(self, deadline: Deadline) -> tuple[Permission, ...]:
        return tuple(
            permission
            for place, arm in self._diagnosed().places
            for permission in _permissions(place, arm, deadline)
        )

    def backend_time(self, deadline: Deadline) -> float | None:
        place, arm = self._diagnosed().places[0]
        try:
            _, date = arm.read(_PERMISSIONS.format(place.subscription, place.group), _API_VERSION, deadline)
        except Refused as error:
            raise as_provider_error("asking for the time", error) from error
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            return None


def _permissions(place: Place, arm: Arm, deadline: Deadline) -> Iterator[Permission]:
    where = f"in the resource group {place.group}"
    try:
        document, _ = arm.read(_PERMISSIONS.format(place.subscription, place.group), _API_VERSION, deadline)
    except Refused as error:
        why = f"Azure answers {error} to the question what is granted {where}"
        yield from (Permission(action, None, why) for action in NEEDED)
        return
    roles: list[Json] = document.get("value") or []
    for action in NEEDED:
        granted = any(_grants(role, action) for role in roles)
        yield Permission(action, granted, "" if granted else where)


def _grants(role: Json, action: str) -> bool:
    """Whether a role has the action, by Azure's wildcards, and does not take it away again."""

    def named(member: str) -> bool:
        return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in role.get(member) or ())

    return named("actions") and not named("notActions")


def _claims(token: str) -> Json:
    """What a token says of its owner; empty if it is in no form that we know. The token stays here."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}
