"""Where the policy is looked for, and that a broken source is never passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import AgentError, Refused, Unavailable
from agent.policy import DEFAULT_POLICY, Policy, VolumeRules
from agent.policy_source import PolicyFiles, load_policy
from tests.unit.agent.policy_support import initdata

OTHER_FILES = {"aa.toml": "", "cdh.toml": ""}


def policy_text(destination: str) -> str:
    return f'version = 1\n[volumes."{destination}"]\nkey = "a/b/c"\n'


def policy(destination: str) -> Policy:
    return Policy({destination: VolumeRules(key_id="a/b/c")})


REFERENCE = 'version = 1\npolicy-resource = "default/policy/pod"\n'


class Broker:
    """Holds resources; what is missing is not released."""

    def __init__(self, resources: dict[str, bytes]) -> None:
        self.resources = resources
        self.asked: list[str] = []

    def get_resource(self, uri: str) -> bytes:
        self.asked.append(uri)
        if uri not in self.resources:
            raise Unavailable("data-hub-failed", "it does not release it")
        return self.resources[uri]


class Guest:
    """The files of a VM."""

    def __init__(self, root: Path) -> None:
        self.files = PolicyFiles(root / "initdata", root / "initdata.digest", root / "volumes.toml")
        self.broker = Broker({})

    def measured(self, files: dict[str, str]) -> None:
        blob, digest = initdata(files)
        self.files.initdata.write_bytes(blob)
        self.files.initdata_digest.write_bytes(digest)

    def load(self) -> Policy:
        return load_policy(self.broker, self.files)

    def refusal(self, kind: type[AgentError] = Refused) -> str:
        with pytest.raises(kind) as raised:
            self.load()
        assert len(str(raised.value).encode()) < 990
        return raised.value.rule


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


def test_with_no_source_the_built_in_default_holds(guest: Guest) -> None:
    assert guest.load() is DEFAULT_POLICY
    guest.measured(OTHER_FILES)
    assert guest.load() is DEFAULT_POLICY
    assert guest.broker.asked == []


def test_initdata_comes_before_the_image(guest: Guest) -> None:
    guest.files.image.write_text(policy_text("/image"))
    assert guest.load() == policy("/image")
    guest.measured(OTHER_FILES)
    assert guest.load() == policy("/image")
    guest.measured({**OTHER_FILES, "volumes.toml": policy_text("/measured")})
    assert guest.load() == policy("/measured")


@pytest.mark.parametrize("place", ["initdata", "image"])
def test_a_source_may_name_a_resource(guest: Guest, place: str) -> None:
    if place == "initdata":
        guest.measured({"volumes.toml": REFERENCE})
    else:
        guest.files.image.write_text(REFERENCE)
    assert guest.refusal(Unavailable) == "data-hub-failed"
    guest.broker.resources["kbs:///default/policy/pod"] = policy_text("/released").encode()
    assert guest.load() == policy("/released")
    guest.broker.resources["kbs:///default/policy/pod"] = b"version = 1\n[volums]"
    assert guest.refusal() == "policy-invalid"
    guest.broker.resources["kbs:///default/policy/pod"] = REFERENCE.encode()
    assert guest.refusal() == "policy-invalid", "no chains: they could be circles"


def test_a_broken_source_is_not_passed_over(guest: Guest) -> None:
    guest.files.image.write_text(policy_text("/image"))
    guest.measured({"volumes.toml": "version = 1"})
    assert guest.refusal() == "policy-invalid"
    guest.measured({"volumes.toml": ""})
    assert guest.refusal() == "policy-invalid"
    guest.measured(OTHER_FILES)
    guest.files.initdata.write_bytes(b"")
    assert guest.refusal() == "initdata-invalid"
    guest.measured(OTHER_FILES)
    guest.files.initdata_digest.write_bytes(b"00")
    assert guest.refusal() == "initdata-digest"
    guest.files.initdata_digest.unlink()
    assert guest.refusal() == "policy-unreadable"


def test_a_file_that_can_not_be_read_is_not_a_missing_one(guest: Guest) -> None:
    guest.files.image.mkdir()
    assert guest.refusal() == "policy-unreadable"
    guest.measured({"volumes.toml": policy_text("/measured")})
    assert guest.load() == policy("/measured")
    guest.files.initdata.unlink()
    guest.files.initdata.mkdir()
    assert guest.refusal() == "policy-unreadable"


def test_the_error_says_which_source_is_wrong(guest: Guest) -> None:
    guest.files.image.write_text("version = 1\n[volums]")
    with pytest.raises(Refused, match=str(guest.files.image)) as raised:
        guest.load()
    assert str(raised.value).count("[policy-invalid]") == 1
