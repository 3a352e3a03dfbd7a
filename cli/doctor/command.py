"""The command line of ``confidential-csi doctor``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from cli.doctor.catalog import CHECKS
from cli.doctor.fixes import Removal, removals
from cli.doctor.model import Result, Verdict, run
from cli.known_names import known_name_option
from cli.kubernetes_api import has_usual_kubeconfig, kubernetes_options
from cli.node_options import direct_volumes_option
from cli.output import OutputFormat, echo_json, echo_table, output_option, printable
from cli.quiet import keep_libraries_quiet
from cli.scene import (
    HYPERVISOR_SOCKET,
    KATA_CONFIGS,
    KUBELET_ROOT,
    PEER_POD_HANDLERS,
    Paths,
    Scene,
    cloud_of,
    cluster_of,
    provider_option,
)
from driver.errors import DriverError

#: Exit codes: 0 nothing found, 1 doctor itself failed (click's), 2 wrong usage (click's).
EXIT_WARNINGS = 3
EXIT_FAILURES = 4
EXIT_NOTHING_SEEN = 5

_COLUMNS = ("check", "verdict", "what it saw, and what to do")
_PATH = click.Path(path_type=Path)


@click.command(short_help="Find what is wrong on a node or in a cluster.")
@provider_option
@kubernetes_options
@click.option(
    "--endpoint",
    envvar="CSI_ENDPOINT",
    show_envvar=True,
    help="Socket of the driver, as unix:///path; else where a container or a node of ours has it.",
)
@click.option(
    "--kubelet-root",
    type=_PATH,
    default=KUBELET_ROOT,
    show_default=True,
    help="kubelet's root directory, as node.kubeletRoot of the chart.",
)
@direct_volumes_option
@click.option(
    "--hypervisor-socket",
    type=_PATH,
    default=HYPERVISOR_SOCKET,
    show_default=True,
    help="Where cloud-api-adaptor listens for Kata.",
)
@click.option(
    "--kata-config",
    type=_PATH,
    help="Kata's configuration of the remote hypervisor; else looked for where kata-deploy puts it.",
)
@click.option(
    "--node-name",
    envvar=["CONFIDENTIAL_CSI_NODE_ID", "NODE_NAME"],
    default="",
    show_envvar=True,
    help="Kubernetes' name of this node; the driver must be registered on it.",
)
@click.option(
    "--peer-pod-handlers",
    envvar="CONFIDENTIAL_CSI_PEER_POD_HANDLERS",
    default=",".join(sorted(PEER_POD_HANDLERS)),
    show_default=True,
    show_envvar=True,
    help="Handlers of the RuntimeClasses that start peer pods, separated by commas.",
)
@known_name_option(
    "--check",
    "only",
    metavar="ID",
    multiple=True,
    names=[check.id for check in CHECKS],
    what="check",
    page="docs/doctor.md",
    help="Run this check alone (repeatable); docs/doctor.md lists them.",
)
@click.option("--fix", is_flag=True, help="Remove what is provably stale on this node, after asking.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@output_option
def doctor(
    *,
    provider: str | None,
    kubeconfig: Path | None,
    context: str | None,
    endpoint: str | None,
    kubelet_root: Path,
    direct_volumes_root: Path,
    hypervisor_socket: Path,
    kata_config: Path | None,
    node_name: str,
    peer_pod_handlers: str,
    only: tuple[str, ...],
    fix: bool,
    yes: bool,
    output: OutputFormat,
) -> None:
    """Find what is wrong here: on a node, in a controller's pod, or on a laptop with a kubeconfig.

    It changes nothing without --fix. What it can't look at from here it lists as skipped, with the reason.
    Exit codes: 0 nothing found, 3 warnings, 4 failures, 5 there was nothing that it could look at.
    """
    keep_libraries_quiet()
    paths = Paths(
        None if endpoint is None else _socket_path(endpoint),
        kubelet_root,
        direct_volumes_root,
        hypervisor_socket,
        KATA_CONFIGS if kata_config is None else (kata_config,),
    )
    scene = Scene(
        paths,
        cluster=cluster_of(kubeconfig, context),
        cloud=cloud_of(provider),
        cluster_wanted=kubeconfig is not None or context is not None or has_usual_kubeconfig(),
        cloud_wanted=provider is not None,
        node_name=node_name,
        peer_pod_handlers=frozenset(filter(None, peer_pod_handlers.split(","))),
    )
    results = [result for check in CHECKS if not only or check.id in only for result in run(check, scene)]
    if output is OutputFormat.JSON:
        removed = _fix(scene, yes=yes) if fix else []
        echo_json(_document(results, removed))
    else:
        _show(results)
        for what in _fix(scene, yes=yes) if fix else []:
            click.echo(f"Removed: {printable(what)}")
    verdicts = {result.verdict for result in results}
    if Verdict.FAIL in verdicts:
        raise SystemExit(EXIT_FAILURES)
    if Verdict.WARN in verdicts:
        raise SystemExit(EXIT_WARNINGS)
    if verdicts == {Verdict.SKIPPED}:
        raise SystemExit(EXIT_NOTHING_SEEN)


def _document(results: list[Result], removed: list[str]) -> dict[str, object]:
    counts = Counter(result.verdict for result in results)
    return {
        "results": [asdict(result) for result in results],
        "summary": {verdict.value: counts[verdict] for verdict in Verdict},
        "removed": removed,
    }


def _show(results: list[Result]) -> None:
    rows = [
        (one.check, one.verdict, one.saw + (f"\nfix: {one.fix}" if one.fix else ""))
        for one in results
        if one.verdict is not Verdict.SKIPPED
    ]
    echo_table(_COLUMNS, rows)
    unseen: dict[str, list[str]] = {}
    for one in results:
        if one.verdict is Verdict.SKIPPED:
            unseen.setdefault(one.saw, []).append(one.check)
    if unseen:
        if rows:
            click.echo()
        lines = [(str(len(checks)), f"{why}\n{', '.join(checks)}") for why, checks in unseen.items()]
        echo_table(("skipped", "why it was not looked at, so that nothing is known about it"), lines)
    counts = Counter(result.verdict for result in results)
    click.echo()
    click.echo(", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict))


def _fix(scene: Scene, *, yes: bool) -> list[str]:
    """What was removed."""
    try:
        return [one.what for one in removals(scene) if _may(one, yes=yes) and _remove(one)]
    except OSError as error:
        raise click.ClickException(f"--fix: {error.filename}: {error.strerror}") from None


def _may(removal: Removal, *, yes: bool) -> bool:
    return yes or click.confirm(f"Remove {printable(removal.what)}?", err=True)


def _remove(removal: Removal) -> bool:
    try:
        return removal.remove()
    except DriverError as error:
        raise click.ClickException(str(error)) from None


def _socket_path(endpoint: str) -> Path:
    path = Path(endpoint.removeprefix("unix://"))
    if not path.is_absolute():
        raise click.BadParameter("it must be unix:///absolute/path", param_hint="--endpoint")
    return path
