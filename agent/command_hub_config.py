"""``confidential-csi-agent hub-config``: moves the data hub's socket, to make way for the guard.

The owner of the workload wrote the hub's configuration without knowing of a guard (``cdh.toml`` of the
initdata). The hub is started with a copy that differs in ``socket`` alone. The copy is JSON, which the hub
reads as well (guest-components, ``confidential-data-hub/example.config.json``).
"""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from pathlib import Path
from typing import Final

from agent.command_guard import DEFAULT_UPSTREAM
from agent.errors import Refused, Unavailable
from agent.volume_lock import STATE_ROOT

DEFAULT_SOURCE: Final = Path("/run/peerpod/cdh.toml")
DEFAULT_TARGET: Final = STATE_ROOT / "cdh.json"

_MAX_BYTES: Final = 4 << 20

#: What the hub takes when it is started without a configuration (``AaKbcParams::default``).
_HUBS_DEFAULT: Final = {"kbc": {"name": "offline_fs_kbc", "url": ""}}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command alone."""
    parser.add_argument(
        "--source",
        type=Path,
        default=DEFAULT_SOURCE,
        metavar="FILE",
        help="the configuration as it was given (%(default)s); when it is missing, the hub's own default",
    )
    parser.add_argument(
        "--target",
        type=_json_file,
        default=DEFAULT_TARGET,
        metavar="FILE",
        help="the one to start the hub with; its name ends in .json (%(default)s)",
    )
    parser.add_argument(
        "--socket",
        default=DEFAULT_UPSTREAM,
        metavar="SOCKET",
        help="where the hub shall listen: the guard's --upstream (%(default)s)",
    )


def _json_file(text: str) -> Path:
    """The hub tells the form of its configuration by the name; raises ArgumentTypeError."""
    if not text.endswith(".json"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .json, by which the hub knows its form")
    return Path(text)


def run_hub_config(arguments: argparse.Namespace) -> None:
    """Write the configuration.

    Raises:
        Refused: the source is not TOML, or holds what JSON can't express (``hub-config-invalid``).
        Unavailable: it can't be read (``hub-config-unreadable``).
        OSError: the target can't be written.
    """
    config = _load(arguments.source)
    # The hub's parser may not tell "Socket" from "socket".
    moved = {name: value for name, value in config.items() if name.lower() != "socket"}
    moved["socket"] = f"unix://{arguments.socket}"
    try:
        text = json.dumps(moved, allow_nan=False)
    except (TypeError, ValueError):
        raise Refused(
            "hub-config-invalid", f"{arguments.source} holds a date or a number that is none; write a string"
        ) from None
    _write(arguments.target, text.encode())


def _load(source: Path) -> dict[str, object]:
    try:
        with source.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return dict(_HUBS_DEFAULT)
    except OSError as error:
        raise Unavailable("hub-config-unreadable", f"cannot read {source}: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise Refused("hub-config-invalid", f"{source} has more than {_MAX_BYTES} bytes")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError):
        # The parser's message may quote credentials.
        raise Refused("hub-config-invalid", f"{source} is not TOML in UTF-8") from None


def _write(target: Path, content: bytes) -> None:
    """For root alone, and in one piece: the configuration can hold credentials."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    new.replace(target)
