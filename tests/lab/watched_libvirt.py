"""A libvirt connection whose calls that change something are announced before they are made, and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Methods of libvirt's objects by which a provider changes what the host has.
STEPS = frozenset(
    {
        "createXML",
        "createXMLFrom",
        "delete",
        "resize",
        "upload",
        "send",
        "sendHole",
        "finish",
        "blockResize",
        "attachDeviceFlags",
        "detachDeviceFlags",
        "storagePoolDefineXML",
        "setAutostart",
        "create",
        "undefine",
    }
)

_PLAIN = (str, bytes, bytearray, int, float, bool, type(None), dict)


class Watched:
    """An object of libvirt's, or of a fake; what its methods return is watched too.

    Args:
        before: called with the method's name before each step; what it raises, the step raises instead.
        after: likewise, once the step is done.
    """

    def __init__(
        self,
        target: Any,
        before: Callable[[str], None],
        after: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._target = target
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any) -> Any:
            bare = [one._target if isinstance(one, Watched) else one for one in arguments]
            if name not in STEPS:
                return self._wrapped(attribute(*bare))
            self._before(name)
            result = attribute(*bare)
            self._after(name)
            return self._wrapped(result)

        return call

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrapped(one) for one in value]
        return value if isinstance(value, _PLAIN) else Watched(value, self._before, self._after)
