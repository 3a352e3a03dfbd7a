"""AWS EBS volumes (``docs/aws.md``)."""

from providers.aws.provider import AwsProvider

__all__ = ["AwsProvider"]
