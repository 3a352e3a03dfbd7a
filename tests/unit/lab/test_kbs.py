"""The KBS stand-in gives out stored bytes as they are, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.frames import unpack
from tests.lab.kbs import Kbs


@pytest.mark.parametrize("key", [b"", b"\n", b"key\n", bytes(range(256)) * 32])
def test_a_key_comes_back_byte_for_byte(tmp_path: Path, key: bytes) -> None:
    kbs = Kbs(tmp_path)
    kbs.put("default/key/one", key)
    answer = kbs.answer("default/key/one")
    assert (answer["status"], unpack(answer["key"])) == (200, key)


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    Kbs(tmp_path / "kbs").put("default/key/one", b"k")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600]


def test_what_is_not_there_denied_or_removed_is_not_released(tmp_path: Path) -> None:
    kbs = Kbs(tmp_path)
    kbs.put("default/key/one", b"k")
    kbs.denied.add("default/key/one")
    assert kbs.answer("default/key/one") == {"status": 403}
    kbs.denied.clear()
    kbs.remove("default/key/one")
    assert kbs.answer("default/key/one") == {"status": 404}


@pytest.mark.parametrize("path", ["", "a/b", "a/b/c/d", "../../etc", "a/b/..", "/a/b/c", "a//c", "a/b/c\n"])
def test_a_malformed_path_is_refused(tmp_path: Path, path: str) -> None:
    kbs = Kbs(tmp_path)
    assert kbs.answer(path) == {"status": 400}
    with pytest.raises(ValueError, match="repository/type/tag"):
        kbs.put(path, b"k")
