"""ttrpc frames that break the rules, while another client's call succeeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.guest.pod import PLAINTEXT, volume
from tests.guest.sandbox import BUNDLES, LISTEN, creation
from tests.hostile.host import DATA, Host
from tests.peers.kata import SERVICE

INVALID, REFUSED, EXHAUSTED, UNIMPLEMENTED = 3, 9, 8, 12
STREAMS = 60


def attack(host: Host, kind: str, other: dict[str, Any] | None = None) -> list[Any]:
    """Run an attack with a CreateContainer that must not get through; the answers to it."""
    seen = len(host.box.seen())
    other = other or {"method": "StartContainer", "payload": b"hello".hex()}
    refused = creation("attacked", [DATA], {"vol-0": volume("disk", encrypt_type=None, key_id=None)})
    found = host.pod.vm.call(
        f"tests.hostile.inside:{kind}",
        socket_path=LISTEN,
        create=refused.hex(),
        other={"socket_path": LISTEN, "service": SERVICE, **other},
        timeout=260.0,
    )
    assert found["other"]["code"] == 0, found["other"]
    created = [one.container_id for one in host.box.seen()][seen:]
    assert "attacked" not in created
    answers: list[Any] = found["answers"]
    return answers


def test_frames_malformed(host: Host) -> None:
    """Default policy, mode B."""
    assert attack(host, "malformed") == [[1, INVALID, ""], [3, INVALID, ""], [5, UNIMPLEMENTED, ""]]


def test_frames_oversized(host: Host) -> None:
    """Default policy, mode B."""
    assert attack(host, "oversized") == [[1, EXHAUSTED, ""]]


def test_frames_interleaved(host: Host) -> None:
    """Default policy, mode B: each stream gets its own answer."""
    echoes = [[number, 0, (b"%d" % number).hex()] for number in range(3, 2 * STREAMS, 2)]
    assert attack(host, "interleaved") == [[[1, REFUSED, ""], *echoes]] * 2


def test_frames_slow(host: Host, ready_copy: Path) -> None:
    """Default policy, mode B: meanwhile another client gets a container with its volume."""
    host.bring(ready_copy)
    create = creation("good", [DATA], {"vol-0": volume("disk")})
    answers = attack(host, "slow", {"method": "CreateContainer", "payload": create.hex()})
    assert answers == [[1, REFUSED, ""]]
    assert host.pod.read_file(f"{BUNDLES}/good/data") == PLAINTEXT * 1000
    assert host.box.remove("good").code == 0
