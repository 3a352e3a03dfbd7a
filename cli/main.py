"""``confidential-csi``: roles of the driver. Flags and environment variables: ``docs/flags.md``."""

from __future__ import annotations

from importlib import import_module

import click

#: Role to the module that defines its command under the same name; only the one that runs is imported, so
#: that the node role loads no provider.
_ROLES = {"controller": "cli.controller", "node": "cli.node"}


class _Roles(click.Group):
    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(_ROLES)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _ROLES:
            return None
        command: click.Command = getattr(import_module(_ROLES[name]), name)
        return command


@click.group(cls=_Roles, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="confidential-csi")
def main() -> None:
    """Encrypted volumes for confidential containers (peer pods)."""
