"""A policy of the SDK's pipeline that tells the process's observer of each HTTP request."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any

from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import HTTPPolicy

from providers.observation import OK, Call, Outcome

_OBJECT = re.compile(r"/providers/microsoft\.compute/(disks|snapshots)(/[^/]+)?$", re.IGNORECASE)
_TOO_MANY = 429


class ObservedRequests(HTTPPolicy[Any, Any]):
    """Counts and times requests, each with the token that it needs fetched first."""

    def send(self, request: PipelineRequest[Any]) -> PipelineResponse[Any, Any]:
        call = Call(operation_of(request.http_request.method, request.http_request.url))
        outcome = Outcome("NoAnswer")
        try:
            response = self.next.send(request)
            status = response.http_response.status_code
            outcome = Outcome(OK if status < 400 else str(status), throttled=status == _TOO_MANY)
            return response
        finally:
            call.ended(outcome)


def operation_of(method: str, url: str) -> str:
    """``disks.get``, ``snapshots.list`` …; ``operation.get`` for looks at a change that Azure accepted."""
    match = _OBJECT.search(urllib.parse.urlsplit(url).path)
    if match is None:
        return "operation.get"
    verb = "list" if method == "GET" and match[2] is None else method.lower()
    return f"{match[1].lower()}.{verb}"
