"""What all calls that the proxy takes over have in common: reading, working in threads, refusing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from agent.errors import AgentError, Refused
from agent.ttrpc_frame import Code, TtrpcError
from agent.volumes import VolumesFailed

AGENT_SERVICE: Final = "grpc.AgentService"

_MAX_STATUS: Final = 990
"""Bytes of a status message: Kubernetes cuts events at 1024."""
_THREADS: Final = 32

_Read = TypeVar("_Read", bound=Message)
_Done = TypeVar("_Done")


class Workers:
    """Threads for work that blocks. Not asyncio's own, which are few: a disk is waited for, for minutes."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "work")

    async def run(self, work: Callable[[], _Done]) -> _Done:
        """Run ``work``; raises its failure as the status that Kubernetes shows (TtrpcError)."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except (AgentError, VolumesFailed) as error:
            raise status_of(error) from None
        except OSError as error:
            raise TtrpcError(Code.UNAVAILABLE, f"[system-error] {error}"[:_MAX_STATUS]) from None


def status_of(error: AgentError | VolumesFailed) -> TtrpcError:
    """The status for a refusal: it carries the rule and the volume."""
    errors = [one.error for one in error.failures] if isinstance(error, VolumesFailed) else [error]
    refused = any(isinstance(one, Refused) for one in errors)
    message = str(error).encode()[:_MAX_STATUS].decode("utf-8", "ignore")
    return TtrpcError(Code.FAILED_PRECONDITION if refused else Code.UNAVAILABLE, message)


def read_message(kind: type[_Read], payload: bytes) -> _Read:
    """Decode a request. One that can't be read is refused, since the upstream may read it differently."""
    message = kind()
    try:
        message.ParseFromString(payload)
    except DecodeError:
        raise TtrpcError(Code.INVALID_ARGUMENT, f"the {kind.__name__} can't be read") from None
    return message
