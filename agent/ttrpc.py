"""ttrpc for unary calls: what the rest of the agent uses of it."""

from agent.ttrpc_client import Client
from agent.ttrpc_frame import MAX_DATA, Code, TtrpcConnectionError, TtrpcError, TtrpcTimeout
from agent.ttrpc_server import Handler, Server

__all__ = [
    "MAX_DATA",
    "Client",
    "Code",
    "Handler",
    "Server",
    "TtrpcConnectionError",
    "TtrpcError",
    "TtrpcTimeout",
]
