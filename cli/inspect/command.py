"""The command line of ``confidential-csi inspect``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from cli.inspect.argument import Kind, Subject, understand
from cli.inspect.image import inspect_image
from cli.inspect.story import Story, Value
from cli.inspect.volume import inspect_claim, inspect_record, inspect_volume
from cli.kubernetes_api import kubernetes_options
from cli.node_options import direct_volumes_option
from cli.output import OutputFormat, echo_json, echo_table, output_option, printable
from cli.quantity import rounded
from cli.quiet import keep_libraries_quiet
from cli.scene import Paths, Scene, cloud_of, cluster_of, provider_option

#: Exit codes: 0 all as it should be, 1 it could not be inspected (click's), 2 wrong usage (click's).
EXIT_REMARKS = 3
EXIT_ALARMS = 4

#: Bytes: smaller figures are read as they are.
_LEAST_ROUNDED = 1 << 20


@click.command(short_help="Tell the whole story of one volume or disk image.")
@click.argument("subject", metavar="CLAIM|VOLUME|DIRECTORY|IMAGE")
@click.option(
    "--as",
    "wanted",
    type=click.Choice([kind.value for kind in Kind]),
    help="What the argument is, if its form does not tell.",
)
@provider_option
@kubernetes_options
@direct_volumes_option
@output_option
def inspect(
    *,
    subject: str,
    wanted: str | None,
    provider: str | None,
    kubeconfig: Path | None,
    context: str | None,
    direct_volumes_root: Path,
    output: OutputFormat,
) -> None:
    """Tell the whole story of one volume, and prove from a disk image that it is encrypted.

    \b
    namespace/name      a PersistentVolumeClaim
    aws:…, pvc-…        a volume id (a PV's volumeHandle), or the name of a PersistentVolume
    /path, ./path       a directory with mountInfo.json; or a disk image, or a block device

    It writes nothing, and needs no key. Exit codes: 0 all is well, 3 remarks, 4 alarms.
    """
    keep_libraries_quiet()
    understood = understand(subject, None if wanted is None else Kind(wanted))
    story = _story(understood, provider, kubeconfig, context, direct_volumes_root)
    if output is OutputFormat.JSON:
        echo_json(_document(story))
    else:
        _show(story)
    if story.alarms:
        raise SystemExit(EXIT_ALARMS)
    if story.remarks:
        raise SystemExit(EXIT_REMARKS)


def _story(
    subject: Subject, provider: str | None, kubeconfig: Path | None, context: str | None, records: Path
) -> Story:
    if subject.kind is Kind.IMAGE:
        return inspect_image(subject.path)
    scene = Scene(
        Paths(direct_volumes=records), cluster=cluster_of(kubeconfig, context), cloud=cloud_of(provider)
    )
    if subject.kind is Kind.CLAIM:
        return inspect_claim(subject.text, scene)
    if subject.kind is Kind.VOLUME:
        return inspect_volume(subject.text, scene)
    return inspect_record(subject.path, scene)


def _document(story: Story) -> dict[str, object]:
    return {
        "kind": story.kind,
        "subject": story.subject,
        "sections": [{"section": one.key, **one.facts} for one in story.sections],
        "rules": [asdict(statement) for statement in story.statements],
        "alarms": story.alarms,
        "remarks": story.remarks,
        "notSeen": story.unseen,
        "conclusion": story.conclusion,
    }


def _show(story: Story) -> None:
    for section in story.sections:
        click.echo(section.title)
        echo_table(("fact", "value"), [(name, _text(name, value)) for name, value in section.facts.items()])
        click.echo()
    if story.statements:
        click.echo("The rules of the header (docs/inspect.md)")
        echo_table(
            ("rule", "verdict", "what it demands"),
            [
                (one.name, one.verdict, one.demands + (f"\nfound: {one.found}" if one.found else ""))
                for one in story.statements
            ],
        )
        click.echo()
    for title, lines in (
        ("ALARM", story.alarms),
        ("Remark", story.remarks),
        ("Not looked at", story.unseen),
    ):
        for line in lines:
            click.echo(f"{title}: {printable(line)}")
    click.echo(printable(story.conclusion))


def _text(name: str, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and value >= _LEAST_ROUNDED and name.endswith(", bytes"):
        return f"{value} ({rounded(value)})"
    if isinstance(value, str | int):
        return str(value) or "-"
    return "\n".join(value) or "-"
