"""Whether the backend serves this process, asked now and then beside the RPCs.

Probe repeats the last answer. Only what a person must mend makes the controller not ready: credentials,
permissions, settings. An outage does not: the sidecar livenessprobe answers 500 for a plugin that is not
ready, and kubelet then kills it, which mends no cloud and keeps the controller down for a while after the
outage (``docs/health.md``).
"""

from __future__ import annotations

import logging
from typing import Final

from driver.background import repeat
from driver.observation import CheckResult, Observer
from providers.deadline import Deadline
from providers.errors import ProviderError
from providers.interface import BackendCheck

_LOG = logging.getLogger(__name__)

#: Seconds. A start is not slowed down by the first check, and one after a fault comes sooner.
_FIRST_AFTER: Final = 1.0
_BETWEEN: Final = 60.0
_AFTER_A_FAULT: Final = 10.0
_LONGEST: Final = 20.0


class BackendReadiness:
    """The last answer; ready until there is one. Thread-safe."""

    def __init__(self, backend: BackendCheck, observer: Observer) -> None:
        self._backend = backend
        self._observer = observer
        self._words: str | None = None
        self._fault: str | None = None

    def start(self) -> None:
        """Check from now on, in the background."""
        repeat("backend-check", self.check, _FIRST_AFTER)

    def reason(self) -> str | None:
        """Why the controller can't serve, at once; None when it can, as far as is known."""
        return self._fault

    def check(self) -> float:
        """Ask the backend once; the seconds until it is to be asked again."""
        try:
            refusal = self._backend.check_backend(Deadline.after(_LONGEST))
        except ProviderError as error:
            # It says nothing about credentials: what was known of them holds.
            self._tell(CheckResult.UNREACHABLE, str(error))
            return _AFTER_A_FAULT
        self._fault = refusal
        self._tell(CheckResult.SERVED if refusal is None else CheckResult.REFUSED, refusal or "")
        return _BETWEEN if refusal is None else _AFTER_A_FAULT

    def _tell(self, result: CheckResult, words: str) -> None:
        self._observer.backend_checked(result, ready=self._fault is None)
        if words == self._words:
            return
        self._words = words
        fields = {"result": result.value, "reason": words} if words else {"result": result.value}
        level = logging.WARNING if words else logging.INFO
        _LOG.log(level, "backend checked", extra={"fields": fields})
