"""An EC2 that is stricter than the real one, for its volumes and snapshots, over real HTTP.

It has what moto lacks (field case B5): client tokens, answers that lag behind, states that take time, volumes
that never shrink, error codes for what is malformed, too large or too early, throttling by token buckets, and
connections that are lost after the request was accepted.
"""

from tests.fakes.ec2.cloud import Cloud
from tests.fakes.ec2.rules import Bucket, Fault, Rules
from tests.fakes.ec2.server import Ec2Server

__all__ = ["Bucket", "Cloud", "Ec2Server", "Fault", "Rules"]
