"""What an RPC can report, and the gRPC status code of each: the services' own errors and the providers'.

Services raise; the interceptor turns what they raise into a status. Messages say what was wrong, what was
expected and what to do, and never hold a secret: they are shown in Kubernetes events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar

import grpc

from providers import errors as provider

#: Kubernetes cuts event messages at 1,024 bytes, and the sidecars put words of their own in front.
MAXIMUM_MESSAGE_BYTES = 980


class DriverError(Exception):
    """Base of everything a service raises on purpose."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL


class InvalidArgument(DriverError):
    """The request can never work as it stands."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(DriverError):
    """What the request names does not exist."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(DriverError):
    """It exists, but not as the request describes it."""

    code = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(DriverError):
    """Something else has to change before the request can work; nothing is in progress."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unavailable(DriverError):
    """Something needed can't be reached now; try again."""

    code = grpc.StatusCode.UNAVAILABLE


class Aborted(DriverError):
    """Another call works on the same object, or the outcome is not known yet; try again."""

    code = grpc.StatusCode.ABORTED


class OutOfRange(DriverError):
    """No size satisfies the request."""

    code = grpc.StatusCode.OUT_OF_RANGE


class Internal(DriverError):
    """This driver or its node is broken; a person must look."""

    code = grpc.StatusCode.INTERNAL


class Unimplemented(DriverError):
    """The provider does not offer what this RPC needs; no capability advertises it."""

    code = grpc.StatusCode.UNIMPLEMENTED


#: Looked up along the class's bases, so that a subclass made by a third party's provider maps like its base.
PROVIDER_CODES: Mapping[type, grpc.StatusCode] = MappingProxyType(
    {
        provider.InvalidParameterError: grpc.StatusCode.INVALID_ARGUMENT,
        provider.SizeOutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
        provider.VolumeNotFoundError: grpc.StatusCode.NOT_FOUND,
        provider.SnapshotNotFoundError: grpc.StatusCode.NOT_FOUND,
        provider.AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
        provider.InUseError: grpc.StatusCode.FAILED_PRECONDITION,
        provider.QuotaExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
        provider.InvalidTokenError: grpc.StatusCode.ABORTED,
        provider.UnavailableError: grpc.StatusCode.UNAVAILABLE,
        provider.OutcomeUnknownError: grpc.StatusCode.ABORTED,
        provider.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
        provider.CorruptStateError: grpc.StatusCode.INTERNAL,
        provider.ProviderError: grpc.StatusCode.INTERNAL,
    }
)


def code_for(error: Exception) -> grpc.StatusCode | None:
    """The status code of an error raised on purpose; None for an exception that nobody planned."""
    if isinstance(error, DriverError):
        return error.code
    return next((PROVIDER_CODES[base] for base in type(error).__mro__ if base in PROVIDER_CODES), None)


class OutcomeUncertain(Aborted):
    """A change was begun, and an error that nobody planned (its cause) left its outcome open."""


@contextmanager
def change_may_be_sent(change: str) -> Iterator[None]:
    """Around calls of a provider that create or change something; ``change`` names it in the message.

    The sidecars take INTERNAL as "finished, nothing pending" and forget the object, which then leaks (CSI
    1.12 "Error Scheme"; external-provisioner ``checkError``). So an error that would mean INTERNAL becomes
    ABORTED here: "may be in progress", and the call is repeated.

    Raises:
        OutcomeUncertain: in place of an unplanned exception, and of one that maps to INTERNAL.
    """
    try:
        yield
    except Exception as error:
        code = code_for(error)
        if code not in (None, grpc.StatusCode.INTERNAL):
            raise
        reason = f"unexpected {type(error).__name__}" if code is None else str(error)
        raise OutcomeUncertain(f"{change}: {reason}; part of it may have been done, call again") from error


def bounded(message: str, limit: int = MAXIMUM_MESSAGE_BYTES) -> str:
    """``message`` in at most ``limit`` bytes of UTF-8, with an ellipsis where it was cut."""
    data = message.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode("utf-8")
    return data[: limit - len("…".encode())].decode("utf-8", "ignore") + "…"
