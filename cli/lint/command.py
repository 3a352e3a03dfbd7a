"""The command itself (``docs/lint.md``)."""

from __future__ import annotations

import textwrap

import click

from cli.known_names import known_name_option
from cli.lint.outcome import CannotWork
from cli.lint.rules import RULES
from cli.output import OutputFormat, echo_json, output_option


@click.command(short_help="Find mistakes in manifests, values and policies.")
@click.argument("files", metavar="FILE...", type=click.Path(), nargs=-1)
@known_name_option(
    "--explain",
    metavar="RULE",
    names=RULES,
    what="rule",
    page="docs/lint.md",
    help="Say what RULE means, and stop.",
)
@click.option(
    "--provider",
    metavar="NAME",
    default="",
    help="The cloud of StorageClasses that do not tell theirs: the controller's --provider.",
)
@click.option(
    "--peer-pod-handlers",
    metavar="NAMES",
    default="kata-remote",
    show_default=True,
    help="Handlers of the RuntimeClasses that start peer pods, separated by commas, as for the node plugin.",
)
@output_option
@click.pass_context
def lint(
    context: click.Context,
    *,
    files: tuple[str, ...],
    explain: str | None,
    provider: str,
    peer_pod_handlers: str,
    output: OutputFormat,
) -> None:
    """Find mistakes in manifests, Helm values and volume policies.

    FILE is YAML or TOML, a directory of such files, or - for standard input. StorageClasses, claims, pods
    and all others that are given together are checked together. Objects of other drivers are left alone.

    Exits with 0 if there is no error (there may be warnings), with 1 if there is one, and with 2 if a file
    can't be read.
    """
    if explain is not None:
        _explain(explain, output)
        return
    if not files:
        raise click.UsageError("name at least one FILE, or - for standard input")
    try:
        # Here, so that the command's help needs none of what only some installations have.
        from cli.lint.run import run  # noqa: PLC0415  The help must work without it.
    except ModuleNotFoundError as error:
        raise CannotWork(
            f"lint needs the Python package {error.name}: pip install '.[cli]' in a clone brings it"
        ) from None
    context.exit(run(files, provider, peer_pod_handlers, output))


def _explain(rule_id: str, output: OutputFormat) -> None:
    rule = RULES[rule_id]
    if output is OutputFormat.JSON:
        echo_json(
            {"rule": rule.id, "severity": rule.severity, "meaning": rule.meaning, "fix": rule.fix},
        )
        return
    click.echo(f"{rule.id} ({rule.severity})\n")
    for text in (rule.meaning, f"Fix: {rule.fix}"):
        click.echo(textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False))
