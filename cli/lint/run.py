"""Reads files, has them checked, and prints the findings."""

from __future__ import annotations

from typing import Final

import click

from cli.lint.check import check_sources
from cli.lint.clouds import Clouds
from cli.lint.context import Context
from cli.lint.findings import Finding, Report
from cli.lint.outcome import CLEAN, FOUND, UNREADABLE, CannotWork
from cli.lint.rules import Severity
from cli.lint.sources import Source, read_sources
from cli.output import OutputFormat, echo_json, echo_table, printable
from driver.peer_pods import handlers_in
from providers.errors import ConfigurationError

_SHOWN: Final = 10
"""Of what was not checked."""


def run(files: tuple[str, ...], provider: str, peer_pod_handlers: str, output: OutputFormat) -> int:
    """Check the files and print what was found; what to exit with.

    Raises:
        CannotWork: an installed provider can't be used. click.UsageError: an option's value is wrong.
    """
    try:
        clouds = Clouds(provider)
    except ConfigurationError as error:
        raise CannotWork(str(error)) from None
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
        click.echo(f"Error: {printable(message)}", err=True)
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
