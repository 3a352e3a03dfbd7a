"""What a call to Azure Resource Manager can end with. Decided on error codes and state, never on messages."""

from __future__ import annotations

from collections.abc import Mapping

from azure.core import exceptions as azure

from providers.errors import (
    InvalidParameterError,
    ProviderError,
    QuotaExceededError,
    UnavailableError,
)

#: The object itself is not there; that its resource group is not there says nothing about it.
_NOT_FOUND = frozenset({"ResourceNotFound", "NotFound"})
_QUOTA = frozenset(
    {
        "QuotaExceeded",
        "DiskQuotaExceeded",
        "SubscriptionQuotaExceeded",
        "ResourceQuotaExceeded",
        "ResourceGroupQuotaExceeded",
        "ResourceCountLimitExceeded",
        "SnapshotCountExceeded",
        "SkuNotAvailable",
        "AllocationFailed",
        "ZonalAllocationFailed",
        "OverconstrainedZonalAllocationRequest",
    }
)
#: Someone else changes the object right now, or just did.
_CONFLICT = frozenset(
    {
        "Conflict",
        "ConflictingConcurrentWriteNotAllowed",
        "ConcurrentPutRequest",
        "AnotherOperationInProgress",
        "PreconditionFailed",
        "RetryableError",
        "OperationPreempted",
        "DiskBeingDeleted",
    }
)


class Refused(Exception):
    """Azure answered with an error: nothing was done."""

    def __init__(self, status: int, code: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {code}".strip())
        self.status = status
        self.code = code
        self.retry_after = retry_after
        """Seconds that Azure asks to wait."""

    @property
    def not_found(self) -> bool:
        """The object of the call, or one that it refers to, does not exist."""
        return self.status == 404 and self.code in _NOT_FOUND

    @property
    def conflict(self) -> bool:
        """The same call can work in a moment."""
        return self.status in (409, 412) and self.code in _CONFLICT


class Throttled(Refused):
    """Azure answered that there are too many calls."""


class NotSent(Exception):
    """The call never reached Azure."""


class NoAnswer(Exception):
    """The call may have reached Azure, and its answer did not come back or told nothing."""

    retry_after: float | None = None


class Failed(Exception):
    """An operation that Azure had accepted came to nothing."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def classified(error: Exception, *, sent: bool) -> Exception:
    """One of the classes above for what the SDK raised; the error itself if it is none of the SDK's.

    Args:
        sent: the request itself had been handed to the network (and not just one for a token).
    """
    if not isinstance(error, azure.AzureError):
        return error
    if not sent or isinstance(error, azure.ServiceRequestError):
        return NotSent(f"{type(error).__name__}: {str(error)[:300]}")
    if isinstance(error, azure.HttpResponseError) and error.status_code is not None:
        retry_after = _seconds(error)
        code = getattr(error.error, "code", None) or ""
        if error.status_code == 429:
            return Throttled(error.status_code, code, retry_after)
        if 400 <= error.status_code < 500:
            return Refused(error.status_code, code, retry_after)
        unclear = NoAnswer(f"Azure answered {error.status_code} {code}".strip())
        unclear.retry_after = retry_after
        return unclear
    return NoAnswer(type(error).__name__)


def as_provider_error(action: str, error: Exception) -> ProviderError:
    """What the caller of a provider is told about a call that did nothing."""
    if isinstance(error, Failed):
        return _of_code(action, 409, error.code)
    if isinstance(error, Refused) and not isinstance(error, Throttled):
        return _of_code(action, error.status, error.code)
    return UnavailableError(f"{action}: {error}; it is tried again")


def is_quota(code: str) -> bool:
    """Whether the code says that there is no room, or none in that zone."""
    return code in _QUOTA


def _of_code(action: str, status: int, code: str) -> ProviderError:
    if code in _QUOTA:
        return QuotaExceededError(
            f"{action}: Azure answered {code}; raise the quota or use another zone or type"
        )
    if status in (401, 403):
        return UnavailableError(
            f"{action}: Azure answered {code or status}; check the controller's identity and its role "
            "(docs/azure.md)"
        )
    if status == 404:
        return UnavailableError(
            f"{action}: Azure answered {code or status}; check the subscription and the resource group"
        )
    if status == 400:
        return InvalidParameterError(f"{action}: Azure refused it as {code or 'a bad request'}")
    return UnavailableError(f"{action}: Azure answered {code or status}; it is tried again")


def _seconds(error: azure.HttpResponseError) -> float | None:
    headers: Mapping[str, str] = getattr(error.response, "headers", {})
    return retry_after(headers.get("Retry-After"))


def retry_after(header: str | None) -> float | None:
    """Seconds in a ``Retry-After`` header; None without one, or if it is a date."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None
