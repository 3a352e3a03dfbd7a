"""What a StorageClass can say about files in a directory: nothing but their size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from providers.errors import InvalidParameterError
from providers.interface import StorageClassRules

_MIB = 1024**2
_TIB = 1024**4


class LocalClassRules(StorageClassRules):
    """Of the provider ``local``."""

    name: ClassVar[str] = "local"
    size_step_bytes: ClassVar[int] = _MIB
    minimum_size_bytes: ClassVar[int] = _MIB
    maximum_size_bytes: ClassVar[int] = 64 * _TIB
    parameter_names: ClassVar[frozenset[str]] = frozenset()

    def validate_parameters(self, parameters: Mapping[str, str]) -> None:
        for parameter in parameters:
            raise InvalidParameterError(f"the local provider has no parameter {parameter!r}; remove it")
