"""The command itself (``docs/lint.md``)."""

from __future__ import annotations

import textwrap
from typing import Final

import click

from cli.lint.findings import Finding, Report
from cli.lint.rules import RULES, Severity
from cli.output import OutputFormat, echo_json, echo_table, output_option, printable

CLEAN: Final = 0
FOUND: Final = 1
UNREADABLE: Final = 2

_SHOWN: Final = 10
"""Of what was not checked."""


class _CannotWork(click.ClickException):
    """Nothing could be checked: not to be taken for an error in a manifest."""

    exit_code = UNREADABLE


@click.command(short_help="Find mistakes in manifests, values and policies.")
@click.argument("files", metavar="FILE...", type=click.Path(), nargs=-1)
@click.option(
    "--explain", metavar="RULE", type=click.Choice(sorted(RULES)), help="Say what RULE means, and stop."
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
    context.exit(_lint(files, provider, peer_pod_handlers, output))


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


def _lint(files: tuple[str, ...], provider: str, peer_pod_handlers: str, output: OutputFormat) -> int:
    try:
        # Here, so that the command's help needs none of what only some installations have.
        from cli.lint.check import check_sources  # noqa: PLC0415
        from cli.lint.clouds import Clouds  # noqa: PLC0415
        from cli.lint.context import Context  # noqa: PLC0415
        from cli.lint.sources import Source, read_sources  # noqa: PLC0415
        from driver.peer_pods import handlers_in  # noqa: PLC0415
        from providers.errors import ConfigurationError  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise _CannotWork(
            f"lint needs the Python package {error.name}: pip install '.[cli]' in a clone brings it"
        ) from None
    try:
        clouds = Clouds(provider)
    except ConfigurationError as error:
        raise _CannotWork(str(error)) from None
    if provider and provider not in clouds.known:
        raise click.UsageError(f"no provider {provider!r} is known; known: {', '.join(sorted(clouds.known))}")
    try:
        lint_context = Context(clouds, handlers_in(peer_pod_handlers))
    except ValueError as error:
        raise click.UsageError(f"--peer-pod-handlers: {error}") from None
    unreadable = []
    sources = []
    for source in read_sources(files):
        if isinstance(source, Source):
            sources.append(source)
        else:
            unreadable.append(str(source))
    check_sources(lint_context, sources)
    report = lint_context.report
    if output is OutputFormat.JSON:
        _print_json(report, len(sources), unreadable)
    else:
        _print_tables(report, len(sources))
    for message in unreadable:
        click.echo(f"Error: {message}", err=True)
    if unreadable:
        return UNREADABLE
    return FOUND if report.count(Severity.ERROR) else CLEAN


def _print_tables(report: Report, files: int) -> None:
    echo_table(
        ("where", "severity", "rule", "message"),
        [
            (
                str(finding.place),
                finding.rule.severity,
                finding.rule.id,
                f"{_named(finding)}{finding.message}\n-> {finding.rule.fix}",
            )
            for finding in report.sorted()
        ],
    )
    if report.verdicts:
        if report.findings:
            click.echo()
        echo_table(
            ("StorageClass", "where", "its volumes"),
            [(one.name, str(one.place), one.volumes) for one in report.verdicts],
        )
    for message in list(report.unchecked)[:_SHOWN]:
        click.echo(f"Not checked: {printable(message)}", err=True)
    if len(report.unchecked) > _SHOWN:
        click.echo(f"Not checked: {len(report.unchecked) - _SHOWN} more, see --output json", err=True)
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    click.echo(
        f"{_plural(files, 'file')}: {_plural(errors, 'error')}, {_plural(warnings, 'warning')}", err=True
    )


def _print_json(report: Report, files: int, unreadable: list[str]) -> None:
    echo_json(
        {
            "files": files,
            "errors": report.count(Severity.ERROR),
            "warnings": report.count(Severity.WARNING),
            "findings": [
                {
                    "file": finding.place.file,
                    "line": finding.place.line,
                    "rule": finding.rule.id,
                    "severity": finding.rule.severity,
                    "object": finding.subject,
                    "message": finding.message,
                    "meaning": finding.rule.meaning,
                    "fix": finding.rule.fix,
                }
                for finding in report.sorted()
            ],
            "storageClasses": [
                {"name": one.name, "file": one.place.file, "line": one.place.line, "volumes": one.volumes}
                for one in report.verdicts
            ],
            "notChecked": list(report.unchecked),
            "unreadable": unreadable,
        }
    )


def _named(finding: Finding) -> str:
    return f"{finding.subject}: " if finding.subject else ""


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
