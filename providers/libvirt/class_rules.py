"""What a StorageClass can say about volumes in storage pools: checked without libvirt's library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import ClassVar

from providers.errors import InvalidParameterError
from providers.interface import StorageClassRules

DIRECTORY_PARAMETER = "cloudProviderVolumePath"

_MAXIMUM_PATH_BYTES = 512
_MIB = 1024**2
_TIB = 1024**4


class LibvirtClassRules(StorageClassRules):
    """Of the provider ``libvirt``."""

    name: ClassVar[str] = "libvirt"
    size_step_bytes: ClassVar[int] = _MIB
    minimum_size_bytes: ClassVar[int] = _MIB
    maximum_size_bytes: ClassVar[int] = 64 * _TIB
    parameter_names: ClassVar[frozenset[str]] = frozenset({DIRECTORY_PARAMETER})

    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        for parameter, value in parameters.items():
            if parameter not in self.parameter_names:
                raise InvalidParameterError(f"the libvirt provider has no parameter {parameter!r}; remove it")
            check_directory(value)


def check_directory(path: str) -> None:
    """Check a value of :data:`DIRECTORY_PARAMETER`.

    Raises:
        InvalidParameterError: it is no absolute, normal path.
    """
    normal = PurePosixPath(path)
    if (
        not path.startswith("/")
        or path.startswith("//")
        or str(normal) != path
        or ".." in normal.parts
        or not path.isprintable()
        or len(path.encode()) > _MAXIMUM_PATH_BYTES
        or path == "/"
    ):
        raise InvalidParameterError(
            f"{DIRECTORY_PARAMETER} is {path[:80]!r}; expected the absolute path of a directory of the "
            "libvirt host, without '..', '//' or a slash at its end"
        )
