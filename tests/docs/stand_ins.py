"""What is checked of a command line whose program is only played. Each check raises :class:`WrongCommand`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

import yaml

from tests.docs import own_commands
from tests.docs.own_commands import WrongCommand
from tests.docs.pages import TOP
from tests.tools.go_programs import go_program

#: A check gets the arguments, and the directory in which the command ran; none where it is only played.
Check = Callable[[Sequence[str], Path | None], None]

_MAKEFILE: Final = (TOP / "Makefile").read_text()
_DOCKERFILE: Final = (TOP / "Dockerfile").read_text()

_KUBECTL_OPTIONS: Final = frozenset({"--context", "--kubeconfig", "--namespace", "-n"})
#: Verb to its options that take a value, and to those that take none.
_KUBECTL: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = MappingProxyType(
    {
        "annotate": (frozenset({"-f", "-o"}), frozenset({"--overwrite", "--local"})),
        "api-resources": (frozenset({"--api-group"}), frozenset()),
        "apply": (frozenset({"-f", "--dry-run", "-k"}), frozenset({"--server-side"})),
        "auth": (frozenset({"--as"}), frozenset()),
        "create": (
            frozenset({"--from-file", "--from-literal", "--dry-run", "-f", "-o", "--duration"}),
            frozenset(),
        ),
        "cp": (frozenset({"-c"}), frozenset()),
        "delete": (frozenset({"-f", "-l", "--timeout"}), frozenset({"--ignore-not-found", "--all"})),
        "describe": (frozenset({"-l"}), frozenset({"-A"})),
        "drain": (frozenset(), frozenset({"--ignore-daemonsets", "--delete-emptydir-data"})),
        "edit": (frozenset(), frozenset()),
        "exec": (frozenset({"-c"}), frozenset({"-i", "-t", "-it", "--stdin", "--tty"})),
        "get": (
            frozenset({"-o", "-l", "--selector", "--field-selector", "--sort-by", "--output"}),
            frozenset({"-A", "-w", "--watch", "--all-namespaces", "--no-headers", "--show-labels"}),
        ),
        "label": (frozenset({"-l"}), frozenset({"--overwrite"})),
        "logs": (
            frozenset({"-c", "--container", "-l", "--tail", "--since"}),
            frozenset({"-f", "--previous", "-p", "--all-containers", "--prefix"}),
        ),
        "patch": (frozenset({"-p", "--patch", "--type", "--patch-file"}), frozenset()),
        "port-forward": (frozenset(), frozenset()),
        "rollout": (frozenset({"--timeout"}), frozenset()),
        "run": (frozenset({"--image", "--restart", "--overrides"}), frozenset({"--rm", "-i", "-it"})),
        "scale": (frozenset({"--replicas"}), frozenset()),
        "top": (frozenset(), frozenset()),
        "uncordon": (frozenset(), frozenset()),
        "wait": (frozenset({"--for", "--timeout", "-l"}), frozenset()),
    }
)
_HELM_RENDERING: Final = frozenset({"install", "upgrade", "template"})
#: Options of install and upgrade that template does not have or need.
_HELM_NOT_RENDERING: Final = frozenset(
    {"--install", "--reuse-values", "--wait", "--atomic", "--reset-then-reuse-values"}
)
_HELM_VERBS: Final = frozenset({"get", "history", "list", "rollback", "status", "test", "uninstall"})
_KUBERNETES: Final = "1.34.0"


def check_make(arguments: Sequence[str], _directory: Path | None) -> None:
    """Targets and variables are in the Makefile. Other Makefiles (``-C``) are not known."""
    for argument in arguments if "-C" not in arguments else ():
        name, is_variable, _ = argument.partition("=")
        pattern = rf"\$\({re.escape(name)}\)" if is_variable else rf"^{re.escape(name)}:"
        if not re.search(pattern, _MAKEFILE, re.MULTILINE):
            raise WrongCommand(f"the Makefile has no {argument}")


def check_docker(arguments: Sequence[str], _directory: Path | None) -> None:
    """Targets and build arguments are the Dockerfile's."""
    for option, value in pairwise(arguments):
        if option == "--target" and f"AS {value}\n" not in _DOCKERFILE:
            raise WrongCommand(f"the Dockerfile has no target {value}")
        if option == "--build-arg" and f"ARG {value.partition('=')[0]}=" not in _DOCKERFILE:
            raise WrongCommand(f"the Dockerfile has no argument {value}")


def check_helm(arguments: Sequence[str], directory: Path | None) -> None:
    """What installs or upgrades is rendered by Helm itself, so that values meet the chart's schema."""
    verb, *rest = arguments
    if verb in _HELM_RENDERING and directory is not None:
        options = [argument for argument in rest if argument not in _HELM_NOT_RENDERING]
        command = [str(go_program("helm")), "template", "--kube-version", _KUBERNETES, *options]
        rendered = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if rendered.returncode:
            raise WrongCommand(f"helm {verb}: {rendered.stderr.strip()}")
    elif verb not in _HELM_RENDERING | _HELM_VERBS:
        raise WrongCommand(f"helm has no verb {verb}, or no page needed it yet")


def check_kubectl(arguments: Sequence[str], directory: Path | None) -> None:
    """Verb and options are known, applied files hold objects, commands for containers of ours are right."""
    verb, options, inside = _split_kubectl(arguments)
    if inside and inside[0] in CHECKS:
        CHECKS[inside[0]](inside[1:], directory)
    for option, value in options:
        if option == "-f" and value not in (None, "-") and verb != "logs" and directory is not None:
            check_objects(directory / str(value))
        if option in ("-p", "--patch") and value is not None and verb == "patch":
            yaml.safe_load(value)


def check_objects(file: Path) -> None:
    """``file`` holds Kubernetes objects."""
    if not file.is_file():
        raise WrongCommand(f"there is no file {file.name}; show it in a block with that title")
    for one in yaml.safe_load_all(file.read_text()):
        if not (isinstance(one, dict) and {"apiVersion", "kind", "metadata"} <= one.keys()):
            raise WrongCommand(f"{file.name} holds something that is no object of Kubernetes")


def _split_kubectl(
    arguments: Sequence[str],
) -> tuple[str, list[tuple[str, str | None]], Sequence[str]]:
    """The verb, the options with their values, and what stands behind ``--``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words, inside = list(arguments[:end]), arguments[end + 1 :]
    verb = next((word for word in words if word in _KUBECTL), None)
    if verb is None:
        raise WrongCommand(f"kubectl {' '.join(words)}: no verb is known here")
    with_value, without = _KUBECTL[verb]
    options: list[tuple[str, str | None]] = []
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            continue
        name, has_value, value = word.partition("=")
        if name in with_value | _KUBECTL_OPTIONS:
            options.append((name, value if has_value else words.pop(0)))
        elif name in without:
            options.append((name, None))
        else:
            raise WrongCommand(f"kubectl {verb} has no option {name}, or no page needed it yet")
    return verb, options, inside


def check_virsh(arguments: Sequence[str], _directory: Path | None) -> None:
    """The real virsh knows the command."""
    words = arguments[2:] if arguments[0] in ("-c", "--connect") else arguments
    known = subprocess.run(["virsh", "--quiet", "help", words[0]], capture_output=True, check=False)
    if known.returncode:
        raise WrongCommand(f"virsh has no command {words[0]}")


def _anything(_arguments: Sequence[str], _directory: Path | None) -> None:
    """The command line can't be checked here."""


#: Program that is played to what is checked of its arguments.
CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "confidential-csi": own_commands.check_driver,
        "confidential-csi-agent": own_commands.check_agent,
        "docker": check_docker,
        "helm": check_helm,
        "kubectl": check_kubectl,
        "make": check_make,
        "git": _anything,
        "virsh": check_virsh,
    }
)
