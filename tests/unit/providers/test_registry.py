"""Providers are found by entry point, and a wrong set-up is explained."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from providers import registry
from providers.errors import ConfigurationError
from providers.interface import VolumeModifier, ZonedVolumes
from providers.local import LocalProvider
from providers.registry import ENTRY_POINT_GROUP, installed_providers, load_provider

SETTING = "CONFIDENTIAL_CSI_LOCAL_DIRECTORY"


def declare(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Make these the installed providers."""
    points = [EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in values.items()]
    monkeypatch.setattr(registry, "entry_points", lambda **selection: EntryPoints(points).select(**selection))


def test_the_local_provider_is_installed() -> None:
    assert "local" in installed_providers()


def test_naming_providers_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, zcloud="no_such_module_z:Z", acloud="no_such_module_a:A")
    assert installed_providers() == ("acloud", "zcloud")
    assert "no_such_module_a" not in sys.modules


def test_a_provider_is_made_from_the_settings(tmp_path: Path) -> None:
    provider = load_provider("local", {SETTING: str(tmp_path), "PATH": "/bin"})
    assert isinstance(provider, LocalProvider)
    assert provider.name == "local"


def test_an_unknown_name_is_answered_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, local="providers.local:LocalProvider", other="x:Y")
    with pytest.raises(ConfigurationError, match=r"'lcoal'.*local, other"):
        load_provider("lcoal", {})
    declare(monkeypatch)
    with pytest.raises(ConfigurationError, match="none"):
        load_provider("local", {})


@pytest.mark.parametrize("value", ["no_such_module:Provider", "providers.local:NoSuchProvider"])
def test_a_provider_that_does_not_import_is_explained(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    declare(monkeypatch, cloud=value)
    with pytest.raises(ConfigurationError, match="'cloud' is installed but can't be imported"):
        load_provider("cloud", {})


@pytest.mark.parametrize("value", ["pathlib:Path", "providers.registry:load_provider"])
def test_what_is_no_provider_class_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    declare(monkeypatch, cloud=value)
    with pytest.raises(ConfigurationError, match="not a BlockVolumeProvider"):
        load_provider("cloud", {})


def test_one_name_for_two_providers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("local", value, ENTRY_POINT_GROUP) for value in ("a:A", "b:B")])
    monkeypatch.setattr(registry, "entry_points", points.select)
    with pytest.raises(ConfigurationError, match="more than once"):
        load_provider("local", {})


def test_one_provider_seen_twice_on_the_path_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    points = EntryPoints([EntryPoint("local", "providers.local:LocalProvider", ENTRY_POINT_GROUP)] * 2)
    monkeypatch.setattr(registry, "entry_points", points.select)
    assert isinstance(load_provider("local", {SETTING: str(tmp_path)}), LocalProvider)
    assert installed_providers() == ("local",)


@pytest.mark.parametrize("settings", [{}, {SETTING: ""}, {SETTING: "relative/path"}, {SETTING: "."}])
def test_the_directory_must_be_given_absolute(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=SETTING):
        load_provider("local", settings)


def test_the_directory_must_exist_and_be_one(tmp_path: Path) -> None:
    """An unmounted file system is an error at start; nothing is created in its place."""
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(ConfigurationError, match=SETTING):
            load_provider("local", {SETTING: str(wrong)})
    assert not (tmp_path / "missing").exists()


def test_every_provider_s_class_rules_are_found_and_its_provider_obeys_them() -> None:
    rules = registry.installed_class_rules()
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    providers = {point.name: point.load() for point in points}
    assert set(rules) == {"aws", "azure", "libvirt", "local"}
    for name, found in rules.items():
        provider = providers[name]
        assert isinstance(provider, type)
        assert issubclass(provider, type(found))
        assert found.name == name
        may_follow = issubclass(provider, ZonedVolumes)
        assert found.zone_follows_pod({}) == may_follow
        assert bool(found.mutable_parameter_names) == issubclass(provider, VolumeModifier)


def test_class_rules_load_no_sdk() -> None:
    program = (
        "import sys; from providers.registry import installed_class_rules; installed_class_rules(); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    assert "providers" in printed
    assert not {"boto3", "botocore", "azure", "msal", "libvirt", "grpc"} & set(printed)
