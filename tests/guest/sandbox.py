"""A PodVM in which the agent runs as a proxy (mode A or B) or as a guard (mode C)."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proto import agent_pb2, cdh_pb2
from tests.guest.pod import KEY_ID, SOURCE, Pod
from tests.peers.authority import Authority
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
CDH = "/run/confidential-containers/cdh.sock"
MOVED_CDH = "/run/confidential-containers/moved.sock"
FRONT_PORT = 15150
CERTIFICATES = "/run/sandbox/tls"


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
    return _answer(
        pod.vm.call("tests.guest.inside.kata:call", socket_path=socket, **_call_of(service, method, payload))
    )


def _call_of(service: str, method: str, payload: bytes) -> dict[str, Any]:
    return {"service": service, "method": method, "payload": payload.hex(), "timeout": 250.0}


def _answer(got: dict[str, Any]) -> Answer:
    return Answer(got["code"], got["message"], bytes.fromhex(got["payload"]))


@contextmanager
def background(pod: Pod, *argv: str, socket: str = "", port: int = 0) -> Iterator[None]:
    """Run a command of the agent that serves on a socket or a port, until the end of the block."""
    pid = pod.vm.call("tests.guest.inside.agent:start", argv=list(argv), socket_path=socket, port=port)
    try:
        yield
    finally:
        pod.vm.call("tests.guest.inside.agent:stop", pid=pid)


@contextmanager
def guard(pod: Pod) -> Iterator[None]:
    """Mode C: the data hub's socket is moved, as by its configuration, and the guard stands in its place."""
    pod.sh(f"mv {CDH} {MOVED_CDH}")
    try:
        with background(pod, "guard", "--listen", CDH, "--upstream", MOVED_CDH, socket=CDH):
            yield
    finally:
        pod.sh(f"mv {MOVED_CDH} {CDH}")


def secure_mount(
    pod: Pod,
    disk_id: str,
    *,
    source_type: str,
    key_id: str = KEY_ID,
    key_uri: str | None = None,
    target_type: str = "fileSystem",
    mapper_name: str = "caa-vol-0",
    mount_point: str = SOURCE,
) -> Answer:
    """As cloud-api-adaptor's forwarder calls the hub."""
    request = cdh_pb2.SecureMountRequest(
        volume_type="block-device",
        options={
            "devicePath": pod.vm.call("tests.guest.inside.agent:disk_path", disk_id=disk_id),
            "sourceType": source_type,
            "targetType": target_type,
            "encryptionType": "luks2",
            "filesystemType": "ext4",
            "key": f"kbs:///{key_id}" if key_uri is None else key_uri,
            "mapperName": mapper_name,
        },
        mount_point=mount_point,
    )
    return call(pod, CDH, "api.SecureMountService", "SecureMount", request.SerializeToString())


class Sandbox:
    """The agent between a client of kata-agent's protocol and a stand-in for kata-agent."""

    over_tls = False

    def __init__(self, pod: Pod) -> None:
        self.pod = pod

    def call(self, method: str, payload: bytes) -> Answer:
        function = "call_over_tls" if self.over_tls else "call"
        return _answer(self.pod.vm.call(f"tests.guest.inside.kata:{function}", **self._call(method, payload)))

    def traced_create(self, payload: bytes) -> tuple[Answer, dict[str, Any], dict[str, Any]]:
        """CreateContainer; the answer, and what there was in the guest before and after it."""
        found = self.pod.vm.call(
            "tests.guest.inside.kata:traced",
            over_tls=self.over_tls,
            **self._call("CreateContainer", payload),
        )
        return _answer(found["answer"]), found["before"], found["after"]

    def _call(self, method: str, payload: bytes) -> dict[str, Any]:
        return {**self._where(), **_call_of(SERVICE, method, payload)}

    def _where(self) -> dict[str, Any]:
        return {"socket_path": LISTEN}

    def create(
        self,
        container_id: str,
        mounts: Sequence[OciMount],
        volumes: Mapping[str, Mapping[str, str]] | str | None,
    ) -> Answer:
        """CreateContainer; ``volumes`` is the annotation, as it is written or before, or None for none."""
        return self.call("CreateContainer", creation(container_id, mounts, volumes))

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


class FrontSandbox(Sandbox):
    """The same behind the TLS listener of mode A."""

    over_tls = True

    def _where(self) -> dict[str, Any]:
        return {"port": FRONT_PORT, "folder": CERTIFICATES}


def creation(
    container_id: str, mounts: Sequence[OciMount], volumes: Mapping[str, Mapping[str, str]] | str | None
) -> bytes:
    """A CreateContainerRequest with an annotation, as it is written or before, or with none."""
    text = volumes if isinstance(volumes, str | None) else json.dumps(volumes)
    annotations = {} if text is None else {CLOUD_VOLUMES: text, TARGET_PATH: ",/x"}
    return create_container(container_id, mounts, annotations)


@contextmanager
def kata_agent(pod: Pod) -> Iterator[None]:
    """The stand-in for kata-agent; no container is known yet."""
    pod.sh("mkdir -p /run/sandbox; rm -f /run/confidential-csi-agent/containers.json")
    kata = pod.vm.call("tests.guest.inside.kata:start", socket_path=UPSTREAM)
    try:
        yield
    finally:
        # The next one takes its socket: it must have ended.
        pod.vm.call("tests.guest.inside.agent:stop", pid=kata)
        pod.sh("rm -f /run/confidential-csi-agent/containers.json")


@contextmanager
def sandbox(pod: Pod) -> Iterator[Sandbox]:
    """A sandbox with the proxy in mode B."""
    with kata_agent(pod), middle_proxy(pod) as box:
        yield box


@contextmanager
def middle_proxy(pod: Pod, *options: str) -> Iterator[Sandbox]:
    """The proxy in mode B, with options of the agent; at the end the sandbox is destroyed."""
    command = ("proxy", "--mode", "middle", "--listen", LISTEN, "--upstream", UPSTREAM)
    with background(pod, *options, *command, socket=LISTEN):
        yield from _until_destroyed(Sandbox(pod))


@contextmanager
def front_proxy(pod: Pod, folder: Path) -> Iterator[Sandbox]:
    """The proxy in mode A, with certificates made in ``folder``. The forwarder is left out."""
    with background(pod, *front_command(pod, folder), port=FRONT_PORT):
        yield from _until_destroyed(FrontSandbox(pod))


def front_command(pod: Pod, folder: Path) -> tuple[str, ...]:
    """The agent's arguments for mode A, after putting certificates made in ``folder`` into the guest."""
    authority = Authority(folder, "authority")
    server, server_key = authority.issue("server", "serverAuth")
    client, client_key = authority.issue("client", "clientAuth")
    config = {
        "tls-server-key": server_key.read_text(),
        "tls-server-cert": server.read_text(),
        "tls-client-ca": authority.certificate.read_text(),
    }
    files = {file.name: file.read_text() for file in (authority.certificate, client, client_key)}
    for name, content in {**files, "apf.json": json.dumps(config)}.items():
        pod.vm.check(
            ["sh", "-ec", f"mkdir -p {CERTIFICATES}; cat >{CERTIFICATES}/{name}"], stdin=content.encode()
        )
    # By a guest's clock that is behind this machine's, they would not be valid yet.
    now = math.ceil(time.time())
    pod.vm.check(["sh", "-ec", f"test $(date +%s) -ge {now} || date -s @{now}"])
    return (
        *("proxy", "--mode", "front", "--listen", f"127.0.0.1:{FRONT_PORT}", "--upstream", UPSTREAM),
        *("--tls-config", f"{CERTIFICATES}/apf.json"),
    )


def _until_destroyed(box: Sandbox) -> Iterator[Sandbox]:
    yield box
    assert box.call("DestroySandbox", b"").code == 0


def by_disk(disk_id: str) -> str:
    """How the node plugin names a volume."""
    return f"/run/cloud-volumes/by-disk/{base64.urlsafe_b64encode(disk_id.encode()).decode()}"
