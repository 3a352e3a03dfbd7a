"""What the agent refuses or can't do, each with the identifier of the rule it rests on.

Messages reach Kubernetes events by way of the container's creation error: they name the rule and the
volume, say what to do, and never hold a key.
"""


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
