"""``python -m tests.peers ttrpc-go`` builds a peer, so that no test waits for a compiler; prints its path."""

from __future__ import annotations

import sys

from tests.peers import peer_program

for name in sys.argv[1:]:
    print(peer_program(name))
