"""What an argument means is told by its form; what could mean two things is refused."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.inspect.argument import Kind, Subject, understand
from cli.main import main


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("default/ledger", Kind.CLAIM),
        ("team-a/data-db.primary-0", Kind.CLAIM),
        ("pvc-0d9c9a4e-6f1e-4b1e-9f0e-3b8d3d3f3f3f", Kind.VOLUME),
        ("aws:us-east-1/vol-0123456789abcdef0", Kind.VOLUME),
        ("azure:group/csi-vol-pvc-1", Kind.VOLUME),
        ("Default/ledger", Kind.VOLUME),
        ("a/b/c", Kind.VOLUME),
    ],
)
def test_names_are_told_apart_by_their_form(text: str, kind: Kind) -> None:
    assert understand(text) == Subject(kind, text)


def test_paths_are_records_or_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "L3Zhcg=="
    record.mkdir()
    (record / "mountInfo.json").touch()
    image = tmp_path / "disk.raw"
    image.touch()
    assert understand(str(record)).kind is Kind.RECORD
    assert understand(str(image)).kind is Kind.IMAGE
    monkeypatch.chdir(tmp_path)
    assert understand("./disk.raw").kind is Kind.IMAGE


def test_what_could_be_two_things_is_refused_and_can_be_said_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("default").mkdir()
    Path("default/ledger").touch()
    Path("disk.raw").touch()
    for text, kind in (("default/ledger", Kind.CLAIM), ("disk.raw", Kind.VOLUME)):
        with pytest.raises(click.UsageError, match=f"--as {kind.value}"):
            understand(text)
        assert understand(text, kind).kind is kind
        assert understand(f"./{text}").kind is Kind.IMAGE


def test_what_is_nothing_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for text in (str(tmp_path), str(tmp_path / "missing"), str(tmp_path / "pipe"), "", "a\nb"):
        with pytest.raises(click.UsageError):
            understand(text)


@pytest.mark.parametrize(("text", "is_told"), [("ledger", True), ("aws:us-east-1/vol-1", False)])
def test_a_claim_without_its_namespace_is_told_how_claims_are_named(
    text: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "CONFIDENTIAL_CSI_PROVIDER"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(main, ["inspect", text])
    assert done.exit_code == 1
    assert f"no volume {text} is known" in done.output
    assert (f"a claim is named with its namespace, as default/{text}" in done.output) is is_told
