"""``confidential-csi-agent``: mounts, unmounts and lists the encrypted volumes of this VM."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from agent import command_guard, command_header, command_hub_config, command_proxy
from agent.annotation import MAX_ANNOTATION, parse_annotation
from agent.block_device import DirectDevice
from agent.cdh import DEFAULT_SOCKET, DEFAULT_TIMEOUT, DataHubClient
from agent.clock import SystemClock
from agent.commands import SystemRunner
from agent.devices import DEFAULT_TIMEOUT as DEVICE_TIMEOUT
from agent.devices import DeviceFinder
from agent.dumps import forbid_dumps
from agent.errors import AgentError, Refused, Unavailable
from agent.policy_source import PolicyFiles, load_policy
from agent.volumes import Volumes, VolumesFailed

EXIT_OK = 0
#: A rule was broken; trying again will not help. (2 is argparse's, for a wrong command line.)
EXIT_REFUSED = 3
#: Something was missing or failed; trying again may help.
EXIT_UNAVAILABLE = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Results go to standard output, errors to standard error as ``[rule] message``."""
    arguments = command_line().parse_args(argv)
    command: Callable[[argparse.Namespace], None] = arguments.command
    try:
        forbid_dumps()
        command(arguments)
    except VolumesFailed as failed:
        sys.stderr.write(f"{failed}\n")
        return _exit_code([failure.error for failure in failed.failures])
    except AgentError as error:
        sys.stderr.write(f"{error}\n")
        return _exit_code([error])
    except OSError as error:
        sys.stderr.write(f"[system-error] {error}\n")
        return EXIT_UNAVAILABLE
    return EXIT_OK


def _mount(arguments: argparse.Namespace) -> None:
    volumes = parse_annotation(_read(arguments.annotation))
    policy = load_policy(_hub(arguments), PolicyFiles())
    mounted = _volumes(arguments).mount(volumes, policy)
    _print({"volumes": [asdict(volume) for volume in mounted]})


def _unmount(arguments: argparse.Namespace) -> None:
    volumes = _volumes(arguments)
    if arguments.all:
        names = [status.name for status in volumes.status()]
    else:
        names = [volume.name for volume in parse_annotation(_read(arguments.annotation))]
    volumes.unmount(names)
    _print({"unmounted": names})


def _status(arguments: argparse.Namespace) -> None:
    found = _volumes(arguments).status()
    if arguments.json:
        _print({"volumes": [asdict(status) for status in found]})
        return
    for status in found:
        words = [word for word in ("mounted", "open", "shielded") if getattr(status, word)]
        sys.stdout.write(f"{status.name}: {', '.join(words)}\n")


def _proxy(arguments: argparse.Namespace) -> None:
    command_proxy.run_proxy(arguments, _hub(arguments), _volumes(arguments))


def _header_export(arguments: argparse.Namespace) -> None:
    volumes = parse_annotation(_read(arguments.annotation))
    _print(asdict(command_header.run_export(arguments, volumes, _hub(arguments))))


def _volumes(arguments: argparse.Namespace) -> Volumes:
    clock = SystemClock()
    return Volumes(
        hub=_hub(arguments),
        runner=SystemRunner(),
        clock=clock,
        finder=DeviceFinder(clock, arguments.device_timeout),
        open_device=DirectDevice,
    )


def _hub(arguments: argparse.Namespace) -> DataHubClient:
    return DataHubClient(arguments.cdh_socket, arguments.cdh_timeout)


def _read(source: str) -> bytes:
    """The annotation, from a file or (``-``) from standard input; no more of it than could be valid."""
    try:
        if source == "-":
            return sys.stdin.buffer.read(MAX_ANNOTATION + 1)
        with Path(source).open("rb") as file:
            return file.read(MAX_ANNOTATION + 1)
    except OSError as error:
        raise Unavailable("annotation-unreadable", f"cannot read {source}: {error.strerror}") from None


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _exit_code(errors: Sequence[AgentError]) -> int:
    return EXIT_REFUSED if any(isinstance(error, Refused) for error in errors) else EXIT_UNAVAILABLE


class _ShowVersion(argparse.Action):
    """Prints the version of the distribution that this code came with, installed or in one file."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415  Costs a tenth of each start.

        sys.stdout.write(f"{parser.prog} {version('confidential-csi')}\n")
        parser.exit()


def command_line() -> argparse.ArgumentParser:
    """What the command understands."""
    parser = argparse.ArgumentParser(
        prog="confidential-csi-agent",
        description="Mounts, unmounts and lists the encrypted volumes of this VM.",
        epilog=f"Exit codes: 0 done, 2 wrong usage, {EXIT_REFUSED} refused (trying again will not help), "
        f"{EXIT_UNAVAILABLE} unavailable (it may). docs/troubleshooting.md explains the rule in brackets.",
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version")
    parser.add_argument("--cdh-socket", default=DEFAULT_SOCKET, help="the data hub's socket (%(default)s)")
    parser.add_argument(
        "--cdh-timeout",
        type=float,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help="how long the data hub may take for one operation (%(default)g)",
    )
    parser.add_argument(
        "--device-timeout",
        type=float,
        default=DEVICE_TIMEOUT,
        metavar="SECONDS",
        help="how long to wait for a disk to appear (%(default)g)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    mount = commands.add_parser("mount", help="mount the volumes of a cloud_volumes annotation")
    mount.add_argument(
        "--annotation", required=True, metavar="FILE", help="the annotation's value; - is stdin"
    )
    mount.set_defaults(command=_mount)

    unmount = commands.add_parser("unmount", help="unmount and close volumes")
    which = unmount.add_mutually_exclusive_group(required=True)
    which.add_argument("--annotation", metavar="FILE", help="those of an annotation; - is stdin")
    which.add_argument("--all", action="store_true", help="all there are in this VM")
    unmount.set_defaults(command=_unmount)

    proxy = commands.add_parser("proxy", help="stand in the way of kata-agent's protocol (modes A and B)")
    command_proxy.add_options(proxy)
    proxy.set_defaults(command=_proxy)

    guard = commands.add_parser("guard", help="stand on the data hub's socket (mode C)")
    command_guard.add_options(guard)
    guard.set_defaults(command=command_guard.run_guard)

    hub_config = commands.add_parser(
        "hub-config", help="write the data hub's configuration for the guard (mode C)"
    )
    command_hub_config.add_options(hub_config)
    hub_config.set_defaults(command=command_hub_config.run_hub_config)

    header = commands.add_parser("header", help="keep the header of a volume")
    header_commands = header.add_subparsers(required=True, metavar="COMMAND")
    export = header_commands.add_parser("export", help="write it, with its record, to a file for escrow")
    command_header.add_options(export)
    export.set_defaults(command=_header_export)

    status = commands.add_parser("status", help="list the volumes of this VM")
    status.add_argument("--json", action="store_true", help="as JSON")
    status.set_defaults(command=_status)
    return parser


if __name__ == "__main__":
    sys.exit(main())
