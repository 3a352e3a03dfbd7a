"""The fake without a network, for tests of thousands of requests: only sockets are missing under the SDK."""

from __future__ import annotations

import io
import json
import urllib.parse
from collections.abc import Callable
from typing import Any

import requests
import urllib3
from azure.core.pipeline.transport import HttpTransport, RequestsTransport
from requests.adapters import BaseAdapter

from tests.fakes.arm.messages import Answer, Dropped, Request

Handle = Callable[[Request], Answer]


def transport(handle: Handle) -> HttpTransport[Any, Any]:
    """The SDK's usual transport, whose requests ``handle`` answers."""
    session = requests.Session()
    session.trust_env = False  # looking for proxies takes longer than all else
    session.mount("https://", _Adapter(handle))
    made: HttpTransport[Any, Any] = RequestsTransport(
        session=session, session_owner=False, use_env_settings=False
    )
    return made


class _Adapter(BaseAdapter):
    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self._handle = handle

    def send(self, request: requests.PreparedRequest, *_positional: Any, **_named: Any) -> requests.Response:
        parts = urllib.parse.urlsplit(str(request.url))
        body = request.body
        try:
            answer = self._handle(
                Request(
                    method=str(request.method),
                    path=urllib.parse.unquote(parts.path),
                    query=dict(urllib.parse.parse_qsl(parts.query)),
                    headers={
                        "host": parts.netloc,
                        **{name.lower(): str(value) for name, value in request.headers.items()},
                    },
                    body=json.loads(body) if isinstance(body, str | bytes) and body else None,
                )
            )
        except Dropped as error:
            raise requests.ConnectionError(urllib3.exceptions.ProtocolError("dropped")) from error
        data = json.dumps(answer.body).encode() if answer.body is not None else b""
        response = requests.Response()
        response.status_code = answer.status
        response.headers.update({"Content-Type": "application/json", **answer.headers})
        response.raw = urllib3.HTTPResponse(
            io.BytesIO(data), headers=response.headers, status=answer.status, preload_content=False
        )
        response.url = str(request.url)
        response.request = request
        return response

    def close(self) -> None:
        """Nothing is open."""
