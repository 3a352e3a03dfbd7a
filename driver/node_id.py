"""The ids under which nodes register: of a fixed form, so that a controller, which can't see the cluster,
knows an id that no node of this driver can have."""

from __future__ import annotations

import re

_PREFIX = "node/"
#: A Kubernetes node's name is a DNS subdomain (at most 253 characters). 187 leave room for the prefix in
#: the 192 bytes that Kubernetes' CSINode allows.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,185}[a-z0-9])?", re.ASCII)


def is_node_name(name: str) -> bool:
    """Whether a node of that name can have an id."""
    return _NAME.fullmatch(name) is not None


def node_id(name: str) -> str:
    """The id of the node of that name."""
    return _PREFIX + name


def is_node_id(text: str) -> bool:
    """Whether a node of this driver can have this id."""
    return text.startswith(_PREFIX) and is_node_name(text.removeprefix(_PREFIX))
