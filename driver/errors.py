"""What the services of this driver raise: each class is one gRPC status code.

The interceptor turns them into statuses. Messages say what was wrong, what was expected and what to do,
and never hold a secret: they are shown in Kubernetes events.
"""

from __future__ import annotations

from typing import ClassVar

import grpc


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
