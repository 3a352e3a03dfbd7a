"""Target paths: refused by form before anything is touched, and removed without ever reaching inside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.errors import FailedPrecondition, InvalidArgument
from driver.publish_target import PublishTarget


@pytest.mark.parametrize(
    "path",
    [
        "",
        "relative/x",
        "./x",
        "..",
        "/",
        "///",
        "/var/lib/kubelet/../../etc",
        "/var/lib/..",
        "/../etc",
        "/a\0b",
        "\0",
        "~/x",
    ],
)
def test_a_malformed_path_is_refused(path: str) -> None:
    """Field case C9."""
    with pytest.raises(InvalidArgument):
        PublishTarget.parse(path)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_path_is_kept_byte_for_byte(text: str) -> None:
    """Field case C1: consumers compare the raw bytes."""
    path = "/x" + text
    if ".." in path.split("/"):
        return
    assert PublishTarget.parse(path).text == path


def test_two_dots_inside_a_name_are_fine() -> None:
    PublishTarget.parse("/var/lib/..data/a..b")


def test_the_directory_is_created_once_and_only_for_its_owner_and_group(tmp_path: Path) -> None:
    target = PublishTarget.parse(str(tmp_path / "mount"))
    assert target.create()
    assert (tmp_path / "mount").stat().st_mode & 0o7777 == 0o750
    assert not target.create()


def test_a_name_that_is_no_ascii_is_created_as_its_utf8_bytes(tmp_path: Path) -> None:
    PublishTarget.parse(f"{tmp_path}/däta").create()
    assert (tmp_path / "däta").is_dir()


@pytest.mark.parametrize("kind", ["file", "symlink to a directory", "dangling symlink"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_nothing_is_published_onto_something_else(tmp_path: Path, kind: str, slash: str) -> None:
    path = tmp_path / "mount"
    if kind == "file":
        path.write_text("data")
    else:
        path.symlink_to(tmp_path if kind == "symlink to a directory" else tmp_path / "nowhere")
    with pytest.raises(FailedPrecondition):
        PublishTarget.parse(f"{path}{slash}").create()


def test_the_parent_is_the_callers_to_make(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="parent"):
        PublishTarget.parse(str(tmp_path / "missing" / "mount")).create()


def test_a_symlink_loop_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    target = PublishTarget.parse(str(tmp_path / "loop" / "x" / "mount"))
    with pytest.raises(InvalidArgument, match="loop"):
        target.is_below(tmp_path / "root")


def test_removing_a_missing_target_succeeds(tmp_path: Path) -> None:
    """Field case C7 a."""
    PublishTarget.parse(str(tmp_path / "mount")).remove()
    PublishTarget.parse(str(tmp_path / "no" / "parent" / "mount")).remove()


def test_an_empty_directory_is_removed(tmp_path: Path) -> None:
    """Field case C7."""
    target = PublishTarget.parse(f"{tmp_path}/mount/")
    target.create()
    target.remove()
    assert not (tmp_path / "mount").exists()


def test_content_is_never_removed(tmp_path: Path) -> None:
    """Field case C7 c."""
    data = tmp_path / "mount" / "deep" / "data"
    data.parent.mkdir(parents=True)
    data.write_text("precious")
    with pytest.raises(FailedPrecondition, match="not empty"):
        PublishTarget.parse(str(tmp_path / "mount")).remove()
    assert data.read_text() == "precious"


def test_a_file_is_unlinked(tmp_path: Path) -> None:
    """Field case C7 d."""
    (tmp_path / "mount").write_text("x")
    PublishTarget.parse(str(tmp_path / "mount")).remove()
    assert not (tmp_path / "mount").exists()


@pytest.mark.parametrize("slash", ["", "/"])
def test_of_a_symlink_only_the_link_is_removed(tmp_path: Path, slash: str) -> None:
    """Field case C7 e."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "mount").symlink_to(victim)
    PublishTarget.parse(f"{tmp_path}/mount{slash}").remove()
    assert victim.is_dir()
    assert not (tmp_path / "mount").is_symlink()


_MOUNTED = """
import subprocess, sys
from pathlib import Path
from driver.errors import FailedPrecondition
from driver.publish_target import PublishTarget

folder, kind = Path(sys.argv[1]), sys.argv[2]
target = folder / "mount"
if kind == "tmpfs":
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(target)], check=True)
else:
    (folder / "source").mkdir() if kind == "directory" else (folder / "source").write_text("data")
    target.mkdir() if kind == "directory" else target.touch()
    subprocess.run(["mount", "--bind", str(folder / "source"), str(target)], check=True)
try:
    PublishTarget.parse(str(target)).remove()
except FailedPrecondition as error:
    assert "busy" in str(error), error
    print("refused")
"""


@pytest.mark.parametrize("kind", ["tmpfs", "directory", "file"])
def test_a_mount_point_is_left_alone(tmp_path: Path, kind: str) -> None:
    """Field case C7 b and f: EBUSY from rmdir and from unlink."""
    command = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        sys.executable,
        "-c",
        _MOUNTED,
        str(tmp_path),
        kind,
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "refused\n"
    assert (tmp_path / "mount").exists()


def test_a_target_inside_another_directory_is_recognized_through_symlinks(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "root")
    root = tmp_path / "root"
    assert PublishTarget.parse(f"{tmp_path}/link/x").is_below(root)
    assert PublishTarget.parse(f"{tmp_path}/root/").is_below(root)
    assert not PublishTarget.parse(f"{tmp_path}/rooted").is_below(root)
    assert not PublishTarget.parse(f"{tmp_path}/link").is_below(root)
