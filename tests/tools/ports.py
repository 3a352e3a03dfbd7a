"""Ports for the servers of tests."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

#: Below those that Linux gives to connections by itself: between two starts of a server, one of its own
#: clients could take its port.
_PORTS = range(20000, 32000)
#: To have a port of this address, until this process ends, is to be the one that was given the number.
_OF_GIVEN_PORTS = "127.127.127.127"
_given: list[socket.socket] = []


def free_port() -> int:
    """A port of loopback that nobody uses, and that no other caller gets, whatever its process."""
    while True:
        port, given = random.choice(_PORTS), socket.socket()
        with suppress(OSError), socket.socket() as listener:
            given.bind((_OF_GIVEN_PORTS, port))
            listener.bind(("127.0.0.1", port))
            _given.append(given)
            return port
        given.close()
