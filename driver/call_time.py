"""How long a call may take, by what its caller still waits."""

from __future__ import annotations

import grpc

#: Seconds kept back, so that our own answer reaches the caller before its deadline ends the call.
_RESERVE = 0.5


def seconds_left(context: grpc.ServicerContext, longest: float) -> float:
    """Seconds until the caller's deadline, at most ``longest`` (which holds without a deadline), less a
    reserve for the answer."""
    remaining = min(context.time_remaining(), longest)
    return remaining - min(_RESERVE, remaining / 10)
