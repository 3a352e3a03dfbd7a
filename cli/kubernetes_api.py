"""Reading from the Kubernetes API, for the tools that people run; nothing here can change anything.

Objects are the API's own JSON. Messages name what was asked and the status, and never hold what the server or
the kubeconfig said: both can contain tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

Json = dict[str, Any]

_PAGE: Final = 500
_TIMEOUT_SECONDS: Final = (5, 30)
"""To connect, and between two bytes of an answer."""
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class NoAnswer(Exception):
    """The API gave no answer to rely on; the message says why, for people."""


class NotAllowed(NoAnswer):
    """The API server does not let this user see what was asked for."""


@dataclass(frozen=True)
class Answer:
    """A document, and when the server says that it sent it (whole seconds)."""

    document: Json
    sent_at: datetime | None


class KubernetesApi:
    """One cluster. Lists are asked for once; an unreachable server is not tried twice."""

    def __init__(self, client: Any) -> None:
        """``client`` is the ``ApiClient`` of the package ``kubernetes``."""
        self._client = client
        self._lists: dict[str, tuple[Json, ...]] = {}
        self._unreachable: NoAnswer | None = None

    @classmethod
    def connect(cls, kubeconfig: Path | None, context: str | None) -> KubernetesApi:
        """The cluster of a kubeconfig (``KUBECONFIG`` or ``~/.kube/config`` if not given), or the one whose
        pod this is. Nothing is asked yet.

        Raises:
            NoAnswer: there is neither, or it can't be used.
        """
        try:
            config = import_module("kubernetes.config")
            module = import_module("kubernetes.client")
        except ModuleNotFoundError:
            raise NoAnswer("the Python package 'kubernetes' is not installed: pip install '.[cli]'") from None
        settings = module.Configuration()
        settings.retries = False
        chosen = kubeconfig or _usual_kubeconfig()
        try:
            if kubeconfig is not None and not kubeconfig.exists():
                raise NoAnswer(f"there is no file {kubeconfig}")
            if chosen is not None:
                config.load_kube_config(
                    str(chosen), context=context, client_configuration=settings, persist_config=False
                )
            elif _SERVICE_ACCOUNT.exists():
                config.load_incluster_config(client_configuration=settings)
            else:
                raise NoAnswer("there is no kubeconfig (--kubeconfig), and no service account's token here")
        except NoAnswer:
            raise
        except Exception as error:  # YAML, base64, files, exec plugins: their words may quote a token
            where = chosen or "the pod's service account"
            raise NoAnswer(f"{where} can't be used ({type(error).__name__}); try kubectl with it") from None
        return cls(module.ApiClient(settings))

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer | None:
        """The document at a path of the API, as ``/api/v1/nodes/worker``; None if there is none.

        Raises:
            NotAllowed, NoAnswer: as their classes say.
        """
        if self._unreachable is not None:
            raise self._unreachable
        request = self._client.param_serialize(
            "GET",
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*request, _request_timeout=_TIMEOUT_SECONDS)
            content = response.read()
        except Exception as error:  # of urllib3, ssl and others; their words hold the whole address
            self._unreachable = NoAnswer(
                f"the API server at {self._host()} can't be reached ({type(error).__name__})"
            )
            raise self._unreachable from None
        if response.status == 404:
            return None
        if response.status in (401, 403):
            raise NotAllowed(
                f"the API server answers {response.status} to GET {path}: this user may not see it"
            )
        if response.status != 200:
            raise NoAnswer(f"the API server answers {response.status} to GET {path}")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise NoAnswer(f"the API server's answer to GET {path} is no JSON object")
        return Answer(document, _date(response.headers.get("Date", "")))

    def items(self, path: str) -> tuple[Json, ...]:
        """All objects of a list, as ``/api/v1/pods``; empty also if the server has no such kind.

        Raises:
            NotAllowed, NoAnswer: as their classes say.
        """
        if path not in self._lists:
            found: list[Json] = []
            query = {"limit": str(_PAGE)}
            while True:
                answer = self.get(path, query)
                if answer is None:
                    break
                found += answer.document.get("items") or []
                following = (answer.document.get("metadata") or {}).get("continue")
                if not following:
                    break
                query["continue"] = following
            self._lists[path] = tuple(found)
        return self._lists[path]

    def _host(self) -> str:
        """The server's address, without a user or password in it."""
        parts = urlsplit(self._client.configuration.host)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def kubernetes_options(command: Any) -> Any:
    """Add the options that say which cluster is meant."""
    for option in (
        click.option("--context", help="Context of the kubeconfig; its current one if not given."),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path),
            help="Cluster to look at; else $KUBECONFIG, ~/.kube/config or the pod's own.",
        ),
    ):
        command = option(command)
    return command


def has_usual_kubeconfig() -> bool:
    """Whether there is a kubeconfig without naming one."""
    return _usual_kubeconfig() is not None


def _usual_kubeconfig() -> Path | None:
    given = os.environ.get("KUBECONFIG", "")
    if given:
        return Path(given)
    try:
        usual = Path("~/.kube/config").expanduser()
    except RuntimeError:  # a container's user that has no home
        return None
    return usual if usual.exists() else None


def _date(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text)
    except ValueError:
        return None
