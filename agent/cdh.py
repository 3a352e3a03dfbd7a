"""The Confidential Data Hub: releases keys, and opens encrypted devices with them.

It is a process of the same VM that attests to the key broker for us (guest-components). It answers
every failure with status 13 and a generic message; the reason is in its own log alone.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from agent import ttrpc
from agent.errors import Refused, Unavailable
from agent.keys import key_uri as checked_key_uri
from proto import cdh_pb2

DEFAULT_SOCKET: Final = "/run/confidential-containers/cdh.sock"
DEFAULT_TIMEOUT: Final = 60.0
"""Seconds for one operation, retries included. A release waits for an attestation."""

_ATTEMPTS: Final = 3
_SOCKET_WAIT: Final = 10.0
"""Seconds to wait for a hub that is not up yet."""
_SOCKET_POLL: Final = 0.1

_SCHEME: Final = "kbs:///"
_MAPPER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}", re.ASCII)


class DataHub(Protocol):
    """What the agent needs of a data hub."""

    def get_resource(self, uri: str) -> bytes:
        """The bytes that the key broker holds under ``uri`` (``kbs:///repository/type/tag``).

        Raises:
            Refused: ``uri`` is not of that form.
            Unavailable: the hub can't be reached, or does not release it.
        """

    def open_encrypted(self, *, device_path: str, key_uri: str, mapper_name: str, link_path: str) -> None:
        """Open the LUKS2 volume on ``device_path`` as ``/dev/mapper/<mapper_name>``.

        Nothing is formatted or mounted. ``link_path``, which must not exist, becomes a symbolic link to
        the mapping.

        Raises:
            Refused: an argument is malformed.
            Unavailable: the hub can't be reached, did not answer in time (the mapping may exist then),
                or failed.
        """


@dataclass(frozen=True)
class EncryptedOpen:
    """A SecureMount that opens an existing LUKS2 volume, and can express nothing else.

    The hub takes a map of strings, ignores keys it does not know, and formats with a throw-away key
    where it finds none, so the map is never put together anywhere but here.

    Raises:
        Refused: rule ``data-hub-request``: a value that the hub would misunderstand.
    """

    device_path: str
    key_uri: str
    mapper_name: str
    link_path: str

    def __post_init__(self) -> None:
        _check_uri(self.key_uri)
        _check_path("device", self.device_path)
        _check_path("link", self.link_path)
        if not _MAPPER_NAME.fullmatch(self.mapper_name):
            raise Refused(
                "data-hub-request", f"{self.mapper_name[:100]!r} can't be the name of a device-mapper device"
            )

    def request(self) -> cdh_pb2.SecureMountRequest:
        """The message of ``api.SecureMountService/SecureMount``."""
        return cdh_pb2.SecureMountRequest(
            volume_type="block-device",
            options={
                "devicePath": self.device_path,
                "sourceType": "encrypted",
                "targetType": "device",
                "encryptionType": "luks2",
                "key": self.key_uri,
                "mapperName": self.mapper_name,
            },
            mount_point=self.link_path,
        )


class DataHubClient:
    """``DataHub`` over ttrpc. Safe to share between threads: each call has a connection of its own.

    ``timeout`` bounds one operation as a whole, in seconds. A missing socket is waited for, for at most
    10 s of it. Reading a key is tried three times when no answer comes; opening a device is not
    repeated, because the first try may have opened it. A status is final: asking a key broker that said
    no again and again helps nobody.
    """

    def __init__(self, socket_path: str = DEFAULT_SOCKET, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._socket_path = socket_path
        self._timeout = timeout

    def get_resource(self, uri: str) -> bytes:
        """See ``DataHub.get_resource``."""
        _check_uri(uri)
        answer = self._call(
            "api.GetResourceService",
            "GetResource",
            cdh_pb2.GetResourceRequest(ResourcePath=uri).SerializeToString(),
            purpose=f"release {uri}",
            attempts=_ATTEMPTS,
        )
        try:
            return cdh_pb2.GetResourceResponse.FromString(answer).Resource
        except DecodeError:
            raise Unavailable(
                "data-hub-protocol", f"the data hub's answer for {uri} can't be read; check its version"
            ) from None

    def open_encrypted(self, *, device_path: str, key_uri: str, mapper_name: str, link_path: str) -> None:
        """See ``DataHub.open_encrypted``."""
        request = EncryptedOpen(device_path, key_uri, mapper_name, link_path).request()
        self._call(
            "api.SecureMountService",
            "SecureMount",
            request.SerializeToString(),
            purpose=f"open {device_path} as {mapper_name} with {key_uri}",
            attempts=1,
        )

    def _call(self, service: str, method: str, payload: bytes, *, purpose: str, attempts: int) -> bytes:
        deadline = time.monotonic() + self._timeout
        for _ in range(attempts):
            with self._connect(deadline, purpose) as client:
                patience = min(self._timeout / attempts, deadline - time.monotonic())
                try:
                    return client.call(service, method, payload, max(patience, 0.001))
                except ttrpc.TtrpcTimeout:
                    continue
                except ttrpc.TtrpcConnectionError:
                    raise Unavailable(
                        "data-hub-unavailable",
                        f"the data hub closed the connection when asked to {purpose}; see its log",
                    ) from None
                except ttrpc.TtrpcError as error:
                    # Not the hub's words: nothing keeps a key out of them.
                    if error.code == ttrpc.Code.DEADLINE_EXCEEDED:
                        continue
                    raise _status(error.code, purpose) from None
        raise Unavailable(
            "data-hub-timeout",
            f"the data hub did not {purpose} within {self._timeout:g} s; "
            "check that the key broker can be reached from the VM",
        )

    def _connect(self, deadline: float, purpose: str) -> ttrpc.Client:
        give_up = min(deadline, time.monotonic() + _SOCKET_WAIT)
        while True:
            try:
                return ttrpc.Client(self._socket_path)
            except ttrpc.TtrpcConnectionError as error:
                if time.monotonic() + _SOCKET_POLL > give_up:
                    raise Unavailable(
                        "data-hub-unavailable",
                        f"the data hub is needed to {purpose}, but {error}; check that it runs in the VM",
                    ) from None
            time.sleep(_SOCKET_POLL)


def _status(code: int, purpose: str) -> Unavailable:
    if code in (ttrpc.Code.UNIMPLEMENTED, ttrpc.Code.INVALID_ARGUMENT):
        # The Go ttrpc server answers an unknown service with the first, the Rust one with the second.
        return Unavailable(
            "data-hub-unsupported",
            f"what listens on the data hub's socket can't {purpose} (status {code}); check its version",
        )
    return Unavailable(
        "data-hub-failed",
        f"the data hub could not {purpose} (status {code}); the reason is in its log: "
        "attestation or the key broker's policy may refuse, or the key may be missing",
    )


def _check_uri(uri: str) -> None:
    if not uri.startswith(_SCHEME):
        # Without one the hub would make up a key; it also reads file:// and sealed secrets, which the
        # key broker's policy does not guard.
        raise Refused(
            "data-hub-request", f"a key is named as {_SCHEME}repository/type/tag, not {uri[:100]!r}"
        )
    checked_key_uri(uri.removeprefix(_SCHEME))


def _check_path(what: str, path: str) -> None:
    if (
        not path.startswith("/")
        or "\0" in path
        or str(PurePosixPath(path)) != path
        or ".." in path.split("/")
    ):
        raise Refused(
            "data-hub-request", f"the {what} path must be absolute and normalized, not {path[:100]!r}"
        )
