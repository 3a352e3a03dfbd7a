"""What can be wrong with a StorageClass's parameters, for those who want to know all of it.

The driver refuses a class for the first problem; ``confidential-csi lint`` shows each with its line.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProblemKind(StrEnum):
    """The values are the ids of lint's rules."""

    PROVIDER_UNKNOWN = "provider-unknown"
    UNKNOWN = "unknown-parameter"
    OTHER_CLOUD = "other-cloud-parameter"
    NO_EFFECT = "parameter-without-effect"
    CREDENTIAL = "credential-parameter"
    TOO_LONG = "parameters-too-long"
    VALUE = "parameter-value"
    ENCRYPTION_INCOMPLETE = "encryption-incomplete"
    ENCRYPT_TYPE = "encrypt-type"
    KEY_ID = "key-id"
    FILE_SYSTEM = "file-system"


@dataclass(frozen=True)
class Problem:
    """One of them."""

    kind: ProblemKind
    key: str
    """The parameter at fault; empty when it is all of them together."""
    message: str
    """What is wrong and what to do; never the value of a parameter that may be a secret."""
