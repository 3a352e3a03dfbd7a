"""``confidential-csi-agent hub-config``: the owner's configuration, with another socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.__main__ import EXIT_REFUSED, EXIT_UNAVAILABLE, main
from agent.command_guard import DEFAULT_UPSTREAM
from agent.command_hub_config import DEFAULT_SOURCE, DEFAULT_TARGET

OWNERS = """\
socket = "unix:///run/confidential-containers/cdh.sock"
credentials = []
[kbc]
name = "cc_kbc"
url = "https://kbs.example:8080"
kbs_cert = '''
-----BEGIN CERTIFICATE-----
socket = "unix:///other"
-----END CERTIFICATE-----
'''
[image]
max_concurrent_layer_downloads_per_image = 3
"""


def run(source: Path, target: Path) -> int:
    return main(
        ["hub-config", "--source", str(source), "--target", str(target), "--socket", "/run/x/cdh.sock"]
    )


def rewritten(tmp_path: Path, text: str) -> dict[str, object]:
    source, target = tmp_path / "cdh.toml", tmp_path / "state/cdh.json"
    source.write_text(text)
    assert run(source, target) == 0
    found: dict[str, object] = json.loads(target.read_bytes())
    return found


def test_only_the_socket_is_another(tmp_path: Path) -> None:
    """Also where a certificate holds a line that looks like it."""
    found = rewritten(tmp_path, OWNERS)
    assert found.pop("socket") == "unix:///run/x/cdh.sock"
    assert found == {
        "credentials": [],
        "kbc": {
            "name": "cc_kbc",
            "url": "https://kbs.example:8080",
            "kbs_cert": '-----BEGIN CERTIFICATE-----\nsocket = "unix:///other"\n-----END CERTIFICATE-----\n',
        },
        "image": {"max_concurrent_layer_downloads_per_image": 3},
    }


@pytest.mark.parametrize("spelled", ["Socket", "SOCKET", "socket"])
def test_no_spelling_of_socket_survives(tmp_path: Path, spelled: str) -> None:
    """The hub's parser may fold case, and then either could win."""
    found = rewritten(tmp_path, f'{spelled} = "unix:///run/confidential-containers/cdh.sock"')
    assert found == {"socket": "unix:///run/x/cdh.sock"}


def test_without_a_configuration_the_hub_keeps_its_own_default(tmp_path: Path) -> None:
    assert run(tmp_path / "none", tmp_path / "cdh.json") == 0
    assert json.loads((tmp_path / "cdh.json").read_bytes()) == {
        "kbc": {"name": "offline_fs_kbc", "url": ""},
        "socket": "unix:///run/x/cdh.sock",
    }


def test_it_is_for_root_alone_and_replaces_the_one_before(tmp_path: Path) -> None:
    target = tmp_path / "cdh.json"
    target.write_text("old")
    target.chmod(0o644)
    assert run(tmp_path / "none", target) == 0
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["cdh.json"]


@pytest.mark.parametrize(
    "text", ["socket = ", "\x00", "[kbc\n", "since = 2026-01-01", "weight = nan", "[" * 5000]
)
def test_what_can_not_be_rewritten_is_refused_and_nothing_is_written(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hub then does not start: it must not listen where callers expect the guard."""
    (tmp_path / "cdh.toml").write_text(text)
    assert run(tmp_path / "cdh.toml", tmp_path / "cdh.json") == EXIT_REFUSED
    assert "[hub-config-invalid]" in capsys.readouterr().err
    assert not (tmp_path / "cdh.json").exists()


def test_a_mistake_in_it_does_not_end_up_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cdh.toml").write_text("password = S3CR3T")
    assert run(tmp_path / "cdh.toml", tmp_path / "cdh.json") == EXIT_REFUSED
    assert "S3CR3T" not in capsys.readouterr().err


def test_one_that_can_not_be_read_may_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, tmp_path / "cdh.json") == EXIT_UNAVAILABLE
    assert "[hub-config-unreadable]" in capsys.readouterr().err


_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(config=st.dictionaries(st.text().filter(lambda name: name.lower() != "socket"), _values, max_size=4))
def test_whatever_the_owner_wrote_the_hub_reads(
    config: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = rewritten(
        tmp_path_factory.mktemp("c"), "".join(f"{_toml(k)} = {_toml(v)}\n" for k, v in config.items())
    )
    assert found == {**config, "socket": "unix:///run/x/cdh.sock"}


def _toml(value: object) -> str:
    """A value in TOML; JSON's strings, numbers and booleans are TOML's, but for DEL and surrogate pairs."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
    return json.dumps(value)


def test_the_defaults_fit_the_guard_and_the_podvm() -> None:
    assert (str(DEFAULT_SOURCE), str(DEFAULT_TARGET), DEFAULT_UPSTREAM) == (
        "/run/peerpod/cdh.toml",
        "/run/confidential-csi-agent/cdh.json",
        "/run/confidential-csi-agent/cdh.sock",
    )


def test_a_target_that_the_hub_would_not_read_as_json_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path / "cdh.toml", tmp_path / "cdh.new")
    assert "does not end in .json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
