"""What an RPC can report, and the one table from errors to gRPC status codes.

Services raise; ``driver/interceptor.py`` turns what they raise into a status. Messages say what was
wrong, what was expected and what to do; they are shown in Kubernetes events and never hold a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import grpc

from providers import errors as provider_errors

#: Kubernetes cuts event messages at 1024 bytes, and adds words of its own.
MAXIMUM_MESSAGE_BYTES = 980


class DriverError(Exception):
    """Base of what the driver itself reports."""


class InvalidArgumentError(DriverError):
    """The request can never work as it is."""


class NotFoundError(DriverError):
    """The object of the request does not exist."""


class AlreadyExistsError(DriverError):
    """The name or place is taken by something that the request does not describe."""


class OutOfRangeError(DriverError):
    """The requested size can't be had."""


class FailedPreconditionError(DriverError):
    """The request can't be served in the present state; nothing is in progress."""


class AbortedError(DriverError):
    """Another operation is, or may be, in progress. Call again."""


class UnavailableError(DriverError):
    """Something needed could not be asked. Call again."""


class UnimplementedError(DriverError):
    """The provider does not offer what this RPC needs; no capability advertises it."""


#: Looked up along the method resolution order of the exception's class, so that a subclass defined by a
#: third party's provider maps like its base.
CODES: Mapping[type[Exception], grpc.StatusCode] = MappingProxyType(
    {
        InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
        NotFoundError: grpc.StatusCode.NOT_FOUND,
        AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
        OutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
        FailedPreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
        AbortedError: grpc.StatusCode.ABORTED,
        UnavailableError: grpc.StatusCode.UNAVAILABLE,
        UnimplementedError: grpc.StatusCode.UNIMPLEMENTED,
        DriverError: grpc.StatusCode.INTERNAL,
        provider_errors.InvalidParameterError: grpc.StatusCode.INVALID_ARGUMENT,
        provider_errors.SizeOutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
        provider_errors.VolumeNotFoundError: grpc.StatusCode.NOT_FOUND,
        provider_errors.SnapshotNotFoundError: grpc.StatusCode.NOT_FOUND,
        provider_errors.AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
        provider_errors.InUseError: grpc.StatusCode.FAILED_PRECONDITION,
        provider_errors.QuotaExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
        provider_errors.InvalidTokenError: grpc.StatusCode.ABORTED,
        provider_errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
        provider_errors.OutcomeUnknownError: grpc.StatusCode.ABORTED,
        provider_errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
        provider_errors.CorruptStateError: grpc.StatusCode.INTERNAL,
        provider_errors.ProviderError: grpc.StatusCode.INTERNAL,
    }
)


def code_for(error: BaseException) -> grpc.StatusCode | None:
    """The status code of an error raised on purpose; None for an exception nobody planned."""
    for base in type(error).__mro__:
        code = CODES.get(base)
        if code is not None:
            return code
    return None


@contextmanager
def change_may_be_sent(what: str) -> Iterator[None]:
    """Around the calls of a provider that create or change something.

    The Kubernetes sidecars take INTERNAL as "finished, nothing pending" and then forget the object, so
    in here an error with that meaning becomes ABORTED, "may be in progress": the call is repeated
    (CSI 1.12 "Error Scheme"; external-provisioner ``checkError``).

    Args:
        what: names the change in the message ("creating volume 'pvc-1'").

    Raises:
        AbortedError: instead of an unplanned exception, or of one that maps to INTERNAL.
    """
    try:
        yield
    except Exception as error:
        code = code_for(error)
        if code is not None and code is not grpc.StatusCode.INTERNAL:
            raise
        reason = str(error) if code is not None else f"unexpected {type(error).__name__}"
        raise AbortedError(f"{what}: {reason}; it may have been done, the call will be repeated") from error


def bounded(message: str, limit: int = MAXIMUM_MESSAGE_BYTES) -> str:
    """``message`` cut to at most ``limit`` bytes of UTF-8, with an ellipsis where it was cut."""
    data = message.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode("utf-8")
    return data[: limit - 3].decode("utf-8", "ignore") + "…"
