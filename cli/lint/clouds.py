"""Which cloud a StorageClass is for, and what that cloud's rules are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from driver.parameters import CLOUD_PROVIDER, COMMON, nearest
from providers.interface import StorageClassRules
from providers.registry import installed_class_rules


class Clouds:
    """The clouds whose rules are installed.

    Args:
        default: the one of classes that do not tell theirs; empty if nobody knows.
    """

    def __init__(self, default: str = "") -> None:
        self.known: Mapping[str, StorageClassRules] = installed_class_rules()
        self.default = default
        self._any = _any_cloud(self.known)

    def rules_for(self, parameters: Mapping[str, str]) -> StorageClassRules:
        """The rules of the cloud that a class names, or whose parameters it uses.

        Of a class that does neither, :meth:`is_known` is false: then only what holds for every cloud can be
        said.
        """
        if CLOUD_PROVIDER in parameters or self.default:
            return self.known.get(parameters.get(CLOUD_PROVIDER, self.default), self._any)
        own = [key for key in parameters if key not in COMMON]
        votes = {name: sum(_is_parameter_of(key, rules) for key in own) for name, rules in self.known.items()}
        # Of a class that mixes two clouds alike, one of them is wrong in any case.
        winner = max(sorted(votes), key=lambda name: votes[name], default="")
        return self.known[winner] if votes.get(winner) else self._any

    def is_known(self, rules: StorageClassRules) -> bool:
        """Whether these are the rules of one cloud."""
        return rules is not self._any


def _is_parameter_of(key: str, rules: StorageClassRules) -> bool:
    if key in rules.parameter_names:
        return True
    # A misspelled one tells the cloud, too, as long as its beginning is the cloud's.
    guess = nearest(key, rules.parameter_names)
    return guess is not None and guess[:3].lower() == key[:3].lower()


def _any_cloud(known: Mapping[str, StorageClassRules]) -> StorageClassRules:
    names = frozenset[str]().union(*(rules.parameter_names for rules in known.values()))

    class AnyCloud(StorageClassRules):
        # No provider's: an empty cloudProvider is wrong, too.
        name: ClassVar[str] = "any cloud"
        parameter_names: ClassVar[frozenset[str]] = names

        def validate_parameters(self, parameters: Mapping[str, str]) -> None:
            del parameters

    return AnyCloud()
