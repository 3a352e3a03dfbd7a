"""What a provider can report. ``driver/errors.py`` maps each class to one gRPC status code.

Messages say what was wrong, what was expected and what to do, and never hold a secret:
they are shown to users in Kubernetes events.
"""


class ProviderError(Exception):
    """Base of everything a provider raises on purpose."""


class ConfigurationError(ProviderError):
    """The provider can't be loaded as the process is set up: a start-up error, of no RPC."""


class InvalidParameterError(ProviderError):
    """A parameter's value, or a combination of values, can never work. Nothing was done."""


class SizeOutOfRangeError(ProviderError):
    """No size that the backend can make satisfies the request. Nothing was done."""


class VolumeNotFoundError(ProviderError):
    """The backend was asked and says that there is no such volume."""


class SnapshotNotFoundError(ProviderError):
    """The backend was asked and says that there is no such snapshot."""


class AlreadyExistsError(ProviderError):
    """The name is taken by an object that the request does not describe. Nothing was done."""


class InUseError(ProviderError):
    """The object can't be changed or deleted while something uses it. Nothing was done."""


class QuotaExceededError(ProviderError):
    """A quota, a limit or the free space does not allow it. Nothing was done."""


class InvalidTokenError(ProviderError):
    """A paging token that this provider did not hand out, or that is no longer valid."""


class UnavailableError(ProviderError):
    """The backend could not be asked (down, throttling, unreachable): says nothing about the object."""


class OutcomeUnknownError(ProviderError):
    """A change was sent and its result is not known (yet): the object may exist. Call again."""


class DeadlineError(ProviderError):
    """The caller's deadline passed, or the caller went away, before the work was done. Call again."""


class CorruptStateError(ProviderError):
    """The backend holds something under a name of ours that it should never hold; a person must look."""
