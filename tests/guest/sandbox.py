"""A PodVM in which the agent runs as a proxy or as a guard."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from proto import agent_pb2
from tests.guest.pod import Pod
from tests.peers.kata import (
    CLOUD_VOLUMES,
    SERVICE,
    TARGET_PATH,
    OciMount,
    by_id,
    create_container,
    integer,
    text,
)

LISTEN = "/run/sandbox/proxy.sock"
UPSTREAM = "/run/sandbox/kata.sock"
BUNDLES = "/run/kata-stand-in"


@dataclass(frozen=True)
class Answer:
    """What a ttrpc call gave."""

    code: int
    message: str
    payload: bytes

    def refused(self, rule: str, code: int = 9) -> None:
        """Assert that the call was refused by this rule."""
        assert self.code == code, self
        assert f"[{rule}]" in self.message, self


def call(pod: Pod, socket: str, service: str, method: str, payload: bytes) -> Answer:
    """Call a ttrpc server in the guest."""
    got = pod.vm.call(
        "tests.guest.inside.kata:call",
        socket_path=socket,
        service=service,
        method=method,
        payload=payload.hex(),
        timeout=110.0,
    )
    return Answer(got["code"], got["message"], bytes.fromhex(got["payload"]))


@contextmanager
def background(pod: Pod, command: str, socket: str) -> Iterator[None]:
    """Run a command in the guest until the end of the block; waits for its socket."""
    log = "/run/sandbox/background.log"
    pod.sh(
        f"mkdir -p /run/sandbox; rm -f {socket}; {command} >{log} 2>&1 & echo $! >/run/sandbox/pid; "
        f"for i in $(seq 200); do [ -S {socket} ] && exit 0; sleep 0.05; done; cat {log} >&2; exit 1"
    )
    try:
        yield
    finally:
        pod.sh(
            "kill $(cat /run/sandbox/pid); "
            "while kill -0 $(cat /run/sandbox/pid) 2>/dev/null; do sleep 0.05; done"
        )


class Sandbox:
    """The agent between a client of kata-agent's protocol and a stand-in for kata-agent."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod

    def call(self, method: str, payload: bytes) -> Answer:
        return call(self.pod, LISTEN, SERVICE, method, payload)

    def create(
        self, container_id: str, mounts: Sequence[OciMount], volumes: Mapping[str, Mapping[str, str]]
    ) -> Answer:
        annotations = {CLOUD_VOLUMES: json.dumps(volumes), TARGET_PATH: ",/x"}
        return self.call("CreateContainer", create_container(container_id, mounts, annotations))

    def remove(self, container_id: str) -> Answer:
        return self.call("RemoveContainer", by_id(container_id))

    def seen(self) -> list[agent_pb2.CreateContainerRequest]:
        """The containers that reached the stand-in for kata-agent."""
        found = self.pod.vm.call("tests.guest.inside.kata:calls", method="CreateContainer")
        return [agent_pb2.CreateContainerRequest.FromString(bytes.fromhex(one)) for one in found]

    def stats(self, path: str) -> agent_pb2.VolumeStatsResponse:
        answer = self.call("GetVolumeStats", text(1, path))
        assert answer.code == 0, answer
        return agent_pb2.VolumeStatsResponse.FromString(answer.payload)

    def resize(self, path: str, size: int) -> Answer:
        return self.call("ResizeVolume", text(1, path) + integer(2, size))


@contextmanager
def sandbox(pod: Pod) -> Iterator[Sandbox]:
    """The proxy in mode B; at the end the sandbox is destroyed."""
    pod.sh("mkdir -p /run/sandbox; rm -rf /run/confidential-csi-agent/containers.json")
    kata = pod.vm.call("tests.guest.inside.kata:start", socket_path=UPSTREAM)
    try:
        with background(
            pod, f"confidential-csi-agent proxy --mode middle --listen {LISTEN} --upstream {UPSTREAM}", LISTEN
        ):
            found = Sandbox(pod)
            yield found
            assert found.call("DestroySandbox", b"").code == 0
    finally:
        pod.sh(f"kill {kata}; rm -f /run/confidential-csi-agent/containers.json")


def by_disk(disk_id: str) -> str:
    """How the node plugin names a volume."""
    return f"/run/cloud-volumes/by-disk/{base64.urlsafe_b64encode(disk_id.encode()).decode()}"
