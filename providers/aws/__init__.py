"""AWS EBS volumes (``docs/aws.md``).

Importing the package imports no SDK: ``aws.class_rules`` needs none, the provider does.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from providers.aws.provider import AwsProvider

__all__ = ["AwsProvider"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from providers.aws.provider import AwsProvider  # noqa: PLC0415  Loads the SDK.

    return AwsProvider
