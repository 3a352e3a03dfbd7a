"""What the agent refuses or can't do, each with the identifier of the rule it rests on.

Messages reach Kubernetes events by way of the container's creation error: they name the rule and the
volume, say what to do, and never hold a key.
"""

from typing import Final

#: Characters that a message shows of what the host wrote.
_SHOWN: Final = 100


class AgentError(Exception):
    """Base of everything the agent reports.

    ``rule`` is a stable lower-case identifier (``header-not-authenticated``), documented in
    ``docs/troubleshooting.md``. ``message`` is the text without it.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"[{rule}] {message}")
        self.rule = rule
        self.message = message


class Refused(AgentError):
    """What the host presents breaks a rule. Nothing was written; trying again will not help."""


class Unavailable(AgentError):
    """Something needed is not there or failed (device, data hub, tool); trying again may help."""


def quoted(value: str) -> str:
    """Host input for a message: printable, short and in quotes."""
    text = ascii(value[: _SHOWN + 1])
    return text if len(text) <= _SHOWN + 2 else f"{text[: _SHOWN + 1]}{text[0]}..."


def shown(value: str) -> str:
    """Host input for a message: printable and short."""
    text = ascii(value[: _SHOWN + 1])[1:-1]
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
