"""``confidential-csi``: roles of the driver, and tools (flags and variables: ``docs/flags.md``)."""

from __future__ import annotations

from importlib import import_module

import click

#: Command to the module that defines it under the same name; only the one that runs is imported, so that the
#: node role loads no provider.
_COMMANDS = {
    "attach-libvirt": "cli.attach_libvirt",
    "completion": "cli.completion",
    "controller": "cli.controller",
    "doctor": "cli.doctor.command",
    "inspect": "cli.inspect.command",
    "key": "cli.key",
    "lint": "cli.lint.command",
    "node": "cli.node",
    "policy": "cli.policy",
}


class _Commands(click.Group):
    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(_COMMANDS[name]), name.replace("-", "_"))
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="confidential-csi")
def main() -> None:
    """Encrypted volumes for confidential containers (peer pods)."""
