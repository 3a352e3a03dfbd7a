"""Where the volume policy comes from: the first place that has one decides.

1. ``volumes.toml`` in the initdata of this VM;
2. ``/etc/confidential-csi/volumes.toml`` in its image;
3. the built-in default.

Either file may instead name a resource of the key broker that holds the policy, so that the policy can
change without the measurement. A source that is there but can't be read or believed is an error, never
passed over: the next one might allow more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.errors import Refused
from agent.initdata import MAX_INITDATA, parse_initdata
from agent.keys import KeySource, key_uri
from agent.policy import DEFAULT_POLICY, Policy
from agent.policy_schema import MAX_POLICY, PolicyResource, parse_policy

POLICY_FILE: Final = "volumes.toml"
"""Its name in the initdata."""


@dataclass(frozen=True)
class PolicyFiles:
    """The files looked at."""

    initdata: Path = Path("/run/peerpod/initdata")
    initdata_digest: Path = Path("/run/peerpod/initdata.digest")
    image: Path = Path("/etc/confidential-csi/volumes.toml")


def load_policy(hub: KeySource, files: PolicyFiles) -> Policy:
    """The policy of this VM.

    Raises:
        Refused: a source is invalid: ``policy-unreadable``, ``policy-invalid``, ``initdata-invalid`` or
            ``initdata-digest``.
        Unavailable: the key broker did not release the resource that a source names.
    """
    source = f"{POLICY_FILE} in the initdata"
    text: str | bytes | None = _from_initdata(files)
    if text is None:
        source = str(files.image)
        text = _read(files.image, MAX_POLICY)
    if text is None:
        return DEFAULT_POLICY
    policy = _parse(source, text)
    if isinstance(policy, PolicyResource):
        source = f"the resource {policy.key_id}"
        policy = _parse(source, hub.get_resource(key_uri(policy.key_id)))
    if isinstance(policy, PolicyResource):
        raise Refused(
            "policy-invalid", f"{source} names another resource; expected the policy itself (volumes)"
        )
    return policy


def _from_initdata(files: PolicyFiles) -> str | None:
    blob = _read(files.initdata, MAX_INITDATA)
    if blob is None:
        return None
    digest = _read(files.initdata_digest, MAX_INITDATA)
    if digest is None:
        raise Refused(
            "policy-unreadable",
            f"there is initdata, but no {files.initdata_digest}: it can't be told from a forgery; check that "
            "the VM's process-user-data service ran",
        )
    return parse_initdata(blob, digest).files.get(POLICY_FILE)


def _read(path: Path, maximum: int) -> bytes | None:
    """The content, of which at most ``maximum`` + 1 bytes; None when there is no such file."""
    try:
        with path.open("rb") as file:
            return file.read(maximum + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused("policy-unreadable", f"cannot read {path}: {error.strerror}") from None


def _parse(source: str, text: str | bytes) -> Policy | PolicyResource:
    try:
        return parse_policy(text)
    except Refused as refused:
        raise Refused(refused.rule, f"in {source}: {refused.message}") from None
