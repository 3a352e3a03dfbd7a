"""What a call to EC2 can end with. Decided on error codes and exception classes, never on messages."""

from __future__ import annotations

import re

from botocore import exceptions as botocore
from botocore.parsers import ResponseParserError

from providers.errors import (
    InUseError,
    InvalidParameterError,
    ProviderError,
    QuotaExceededError,
    UnavailableError,
)

THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "TooManyRequestsException",
        "SnapshotCreationPerVolumeRateExceeded",
    }
)
NO_VOLUME = frozenset({"InvalidVolume.NotFound", "InvalidVolumeID.Malformed"})
NO_SNAPSHOT = frozenset({"InvalidSnapshot.NotFound", "InvalidSnapshotID.Malformed"})
USED_BEFORE = "IdempotentParameterMismatch"
"""The client token was, for another request."""

_IN_USE = frozenset({"VolumeInUse", "InvalidSnapshot.InUse"})
_QUOTA = frozenset(
    {
        "VolumeLimitExceeded",
        "MaxIOPSLimitExceeded",
        "SnapshotLimitExceeded",
        "ConcurrentSnapshotLimitExceeded",
        "ResourceCountExceeded",
        "InsufficientVolumeCapacity",
        "VolumeModificationSizeLimitExceeded",
    }
)
#: A volume can be modified again only some hours after the last time: nothing was done, and it will work.
COOLING_DOWN = frozenset({"IncorrectModificationState", "VolumeModificationRateExceeded"})
_LATER = COOLING_DOWN | {"IncorrectState", "ResourceBusy"}
_INVALID = frozenset(
    {
        "InvalidParameter",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "MissingParameter",
        "UnknownParameter",
        "UnknownVolumeType",
        "UnsupportedOperation",
        "ValidationError",
        "InvalidZone.NotFound",
        "InvalidVolume.ZoneMismatch",
        "EncryptedVolumesNotSupported",
        "InvalidKmsKey.InvalidState",
        "TagLimitExceeded",
    }
)

#: Raised before anything was sent, or instead.
_NOT_SENT = (
    botocore.NoCredentialsError,
    botocore.PartialCredentialsError,
    botocore.CredentialRetrievalError,
    botocore.UnauthorizedSSOTokenError,
    botocore.EndpointConnectionError,
    botocore.ConnectTimeoutError,
    botocore.ProxyConnectionError,
    botocore.SSLError,
)


_NO_CREDENTIALS = (
    botocore.NoCredentialsError,
    botocore.PartialCredentialsError,
    botocore.UnauthorizedSSOTokenError,
)

#: In the message of UnauthorizedOperation.
_PERMISSION = re.compile(r"not authorized to perform: ([a-z0-9]{2,20}:[A-Za-z]{1,60})", re.ASCII)


class Refused(Exception):
    """EC2 answered with an error: nothing was done."""

    def __init__(self, code: str, permission: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.permission = permission
        """The one that EC2 says is missing (``ec2:CreateTags``), for people; empty if it does not say."""


class Throttled(Refused):
    """EC2 answered that there are too many calls."""


class NotSent(Exception):
    """The call never reached EC2."""


class NoAnswer(Exception):
    """The call may have reached EC2, and its answer did not come back or told nothing."""


def classified(error: Exception) -> Exception:
    """One of the classes above for what boto3 raised; the error itself if it is none of boto3's."""
    if isinstance(error, botocore.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in THROTTLED:
            return Throttled(code)
        metadata = error.response.get("ResponseMetadata")
        if metadata is not None and metadata["HTTPStatusCode"] >= 500:
            return NoAnswer(f"EC2 answered {code or 'nothing'}")
        named = _PERMISSION.search(str(error.response.get("Error", {}).get("Message", "")))
        return Refused(code, named[1] if named else "")
    if isinstance(error, botocore.ParamValidationError):
        return Refused("ValidationError")
    if isinstance(error, _NOT_SENT):
        return NotSent(type(error).__name__)
    if isinstance(error, (botocore.BotoCoreError, ResponseParserError)):
        return NoAnswer(type(error).__name__)
    return error


def lacks_credentials(error: NotSent) -> bool:
    """Whether nothing was sent because the process has no credentials, which no waiting mends."""
    return isinstance(error.__cause__, _NO_CREDENTIALS)


def as_provider_error(action: str, error: Refused | NotSent | NoAnswer) -> ProviderError:
    """The error to report for a call that changed nothing; ``action`` is EC2's name for it."""
    if not isinstance(error, Refused):
        return UnavailableError(f"EC2 could not be asked ({action}: {error}); it is tried again")
    code = error.code
    if code in _IN_USE:
        return InUseError(f"{action}: EC2 says {code}; delete the pod that uses it first")
    if code in _QUOTA:
        return QuotaExceededError(
            f"{action}: EC2 says {code}; free some, ask AWS for a higher quota, or use another zone or type"
        )
    if code in _INVALID:
        return InvalidParameterError(f"{action}: EC2 says {code}; check the StorageClass's aws… parameters")
    if code in _LATER:
        return UnavailableError(f"{action}: EC2 says {code}; it can't be done now; it is tried again")
    if error.permission:
        return UnavailableError(
            f"{action}: EC2 refused with {code}: the permission {error.permission} is missing; compare the "
            "controller's role with deploy/aws/iam-policy.json"
        )
    # Permissions among them: a role that lacks one says nothing about the object.
    return UnavailableError(
        f"{action}: EC2 refused with {code or 'no code'}; if that is a permission, compare the controller's "
        "role with deploy/aws/iam-policy.json"
    )
