"""Finds providers by the name that ``cloudProvider`` and ``--provider`` use.

A provider is a class behind an entry point of the group ``confidential_csi.providers``, in this package
or in anyone else's. Naming the installed ones imports none of them, so a cloud SDK that is not installed
hurts only whoever asks for that cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from providers.errors import ConfigurationError
from providers.interface import BlockVolumeProvider, StorageClassRules

ENTRY_POINT_GROUP = "confidential_csi.providers"
CLASS_RULES_GROUP = "confidential_csi.class_rules"


def installed_providers() -> tuple[str, ...]:
    """Names of the installed providers, sorted; none is imported."""
    return tuple(sorted({entry_point.name for entry_point in entry_points(group=ENTRY_POINT_GROUP)}))


def load_provider(name: str, settings: Mapping[str, str]) -> BlockVolumeProvider:
    """The provider of that name, configured from ``settings``, the process environment.

    Raises:
        ConfigurationError: no such provider is installed, it can't be imported, or a setting is wrong.
    """
    provider_class = _import(_entry_point(name))
    if not (isinstance(provider_class, type) and issubclass(provider_class, BlockVolumeProvider)):
        raise ConfigurationError(
            f"the entry point of provider {name!r} is not a BlockVolumeProvider class; "
            "fix the package that declares it"
        )
    return provider_class.from_settings(settings)


def installed_class_rules() -> Mapping[str, StorageClassRules]:
    """What the StorageClasses of each installed provider can say, by its name; no SDK is imported.

    Raises:
        ConfigurationError: the entry point of one can't be used.
    """
    found = {}
    for entry_point in entry_points(group=CLASS_RULES_GROUP):
        rules_class = _import(entry_point)
        if not (isinstance(rules_class, type) and issubclass(rules_class, StorageClassRules)):
            raise ConfigurationError(
                f"the entry point {entry_point.name!r} of {CLASS_RULES_GROUP} is not a StorageClassRules "
                "class; fix the package that declares it"
            )
        found[entry_point.name] = rules_class()
    return found


def _entry_point(name: str) -> EntryPoint:
    # One distribution can be on the path twice (an editable install beside its source): no conflict.
    found = {candidate.value: candidate for candidate in entry_points(group=ENTRY_POINT_GROUP, name=name)}
    if not found:
        installed = ", ".join(installed_providers()) or "none"
        raise ConfigurationError(
            f"no provider {name!r} is installed (installed: {installed}); "
            "check the spelling, or install the package that brings it"
        )
    if len(found) > 1:
        raise ConfigurationError(
            f"provider {name!r} is declared more than once ({', '.join(sorted(found))}); "
            "uninstall all but one"
        )
    return next(iter(found.values()))


def _import(entry_point: EntryPoint) -> object:
    try:
        return entry_point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"provider {entry_point.name!r} is installed but can't be imported ({error}); "
            "install the Python packages it needs"
        ) from error
