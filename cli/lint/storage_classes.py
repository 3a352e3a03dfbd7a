"""StorageClasses and VolumeAttributesClasses of this driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cli.lint.capabilities import why_no_file_system, why_no_mount_option
from cli.lint.context import Context
from cli.lint.findings import Place, Verdict
from cli.lint.located import Block, Manifest, block_at, blocks_at, items_at, text_at
from cli.pod_policy import DRIVER
from driver.encryption import ENCRYPT_TYPE, KBS_KEY_ID
from driver.errors import InvalidArgument
from driver.key_template import is_template
from driver.parameters import (
    CLOUD_PROVIDER,
    FS_TYPE,
    KUBERNETES_PREFIX,
    looks_like_credential,
    nearest,
    parameter_problems,
)
from driver.problems import Problem, ProblemKind
from driver.topology import wanted_zones
from proto import csi_pb2
from providers.errors import ProviderError
from providers.interface import StorageClassRules

FS_TYPE_KEY: Final = f"{KUBERNETES_PREFIX}fstype"
#: What external-provisioner reads itself, besides the names of Secrets; it refuses others with its prefix.
_RESERVED: Final = frozenset({FS_TYPE_KEY})
_SECRETS: Final = frozenset(
    f"{KUBERNETES_PREFIX}{role}-secret-{part}"
    for role in (
        "provisioner",
        "controller-publish",
        "controller-expand",
        "node-stage",
        "node-publish",
        "node-expand",
    )
    for part in ("name", "namespace")
)
_FOLLOWS_POD: Final = "WaitForFirstConsumer"


@dataclass(frozen=True)
class ClassFacts:
    """What a class of ours says, as far as it can be understood."""

    parameters: dict[str, str]
    rules: StorageClassRules
    encrypted: bool
    fs_type: str

    @property
    def key_id(self) -> str:
        """As written; empty if there is none."""
        return self.parameters.get(KBS_KEY_ID, "")

    def own_parameters(self) -> dict[str, str]:
        """Those of the cloud."""
        return {key: value for key, value in self.parameters.items() if key in self.rules.parameter_names}


def class_facts(context: Context, manifest: Manifest) -> ClassFacts:
    """What a StorageClass says; values that are no strings as the text that was probably meant."""
    parameters = {key: _as_text(value) for key, value in block_at(manifest.body, "parameters").items()}
    named = [value for key, value in parameters.items() if key == FS_TYPE_KEY or key.lower() == "fstype"]
    return ClassFacts(
        parameters,
        context.clouds.rules_for(parameters),
        encrypted=ENCRYPT_TYPE in parameters or KBS_KEY_ID in parameters,
        fs_type=named[0] if named else "",
    )


def check_storage_class(context: Context, manifest: Manifest) -> None:
    """All rules of a StorageClass on its own."""
    provisioner = text_at(manifest.body, "provisioner")
    check_driver_name(context, manifest, manifest.body, "provisioner", provisioner)
    if provisioner != DRIVER:
        return
    facts = class_facts(context, manifest)
    parameters = block_at(manifest.body, "parameters")
    _check_strings(context, manifest, parameters)
    for key in parameters:
        if key.startswith(KUBERNETES_PREFIX) and key not in _RESERVED | _SECRETS:
            hint = f"; did you mean {FS_TYPE_KEY}?" if key.lower() == FS_TYPE_KEY else ""
            context.note_at(
                "reserved-parameter", manifest, parameters, key, f"{key[:80]!r} can't be set in a class{hint}"
            )
    for problem in parameter_problems(facts.parameters, facts.rules, context.clouds.known):
        context.note_at(problem.kind, manifest, parameters, problem.key, _in_words(context, problem, facts))
    _check_file_system(context, manifest, parameters, facts)
    check_mount_options(context, manifest, manifest.body)
    _check_zones(context, manifest, facts)
    context.report.verdicts.append(_verdict(context, manifest, facts))


def check_attributes_class(context: Context, manifest: Manifest) -> None:
    """A VolumeAttributesClass names only what can change."""
    driver = text_at(manifest.body, "driverName")
    check_driver_name(context, manifest, manifest.body, "driverName", driver)
    if driver != DRIVER:
        return
    parameters = block_at(manifest.body, "parameters")
    _check_strings(context, manifest, parameters)
    rules = context.clouds.rules_for(dict.fromkeys(parameters, ""))
    clouds = [rules] if context.clouds.is_known(rules) else list(context.clouds.known.values())
    changeable = sorted(set[str]().union(*(one.mutable_parameter_names for one in clouds)))
    for key in parameters:
        if key in changeable:
            continue
        if looks_like_credential(key):
            context.note_at(
                ProblemKind.CREDENTIAL, manifest, parameters, key, f"{key[:64]!r} looks like a credential"
            )
            continue
        guess = nearest(key, changeable)
        hint = f"did you mean {guess!r}?" if guess else f"changeable are: {', '.join(changeable) or 'none'}"
        context.note_at(
            "attributes-class", manifest, parameters, key, f"{key[:64]!r} can't be changed; {hint}"
        )


def check_mount_options(context: Context, manifest: Manifest, block: Block) -> None:
    """``mountOptions`` of a class or a volume."""
    for line, option in items_at(block, "mountOptions").located():
        refusal = why_no_mount_option(str(option))
        if refusal is not None:
            # Kubernetes passes each entry on as it is.
            hint = "; write each option as an entry of its own" if "," in str(option) else ""
            context.note("mount-option", manifest, line, refusal + hint)


def check_driver_name(context: Context, manifest: Manifest, block: Block, key: str, name: str) -> None:
    """A name that is nearly this driver's is meant to be."""
    if name != DRIVER and nearest(name, [DRIVER]) is not None:
        context.note_at(
            "driver-name", manifest, block, key, f"{key} is {name[:120]!r}; did you mean {DRIVER!r}?"
        )


def _check_strings(context: Context, manifest: Manifest, parameters: Block) -> None:
    for key, value in parameters.items():
        if isinstance(value, str):
            continue
        what = "null" if value is None else "a number or truth value"
        if isinstance(value, dict | list):
            what = "no scalar"
        context.note_at(
            "parameter-not-string", manifest, parameters, key, f"{key[:64]!r} is {what}; it must be a string"
        )


def _check_file_system(context: Context, manifest: Manifest, parameters: Block, facts: ClassFacts) -> None:
    if FS_TYPE in parameters:
        context.note_at(
            "fs-type-parameter",
            manifest,
            parameters,
            FS_TYPE,
            f"{FS_TYPE} is deprecated; write {FS_TYPE_KEY}",
        )
    refusal = why_no_file_system(facts.fs_type, encrypted=facts.encrypted)
    if refusal is not None:
        key = next(key for key in parameters if key == FS_TYPE_KEY or key.lower() == "fstype")
        context.note_at(ProblemKind.FILE_SYSTEM, manifest, parameters, key, refusal)


def _check_zones(context: Context, manifest: Manifest, facts: ClassFacts) -> None:
    zones: list[str] = []
    for term in blocks_at(manifest.body, "allowedTopologies"):
        for expression in blocks_at(term, "matchLabelExpressions"):
            key = text_at(expression, "key")
            for value in items_at(expression, "values"):
                segments = {key: str(value)}
                try:
                    zones += wanted_zones(
                        csi_pb2.TopologyRequirement(requisite=[csi_pb2.Topology(segments=segments)])
                    )
                except InvalidArgument as error:
                    message = str(error).removeprefix("accessibility_requirements: ")
                    context.note_at("topology-key", manifest, expression, "key", message)
    try:
        follows = context.clouds.is_known(facts.rules) and facts.rules.zone_follows_pod(
            facts.own_parameters()
        )
    except ProviderError:
        return  # reported already, as a value that can't work
    mode = text_at(manifest.body, "volumeBindingMode") or "Immediate"
    if follows and mode != _FOLLOWS_POD and len(zones) != 1:
        context.note_at(
            "binding-mode",
            manifest,
            manifest.body,
            "volumeBindingMode",
            f"volumeBindingMode is {mode[:40]}, and volumes of {facts.rules.name} are in one zone each; "
            f"write {_FOLLOWS_POD}",
        )


def _in_words(context: Context, problem: Problem, facts: ClassFacts) -> str:
    """A problem as it looks to the author of a class, where the driver's words are about a controller."""
    if problem.kind is ProblemKind.PROVIDER_UNKNOWN:
        return (
            f"{CLOUD_PROVIDER} is {facts.parameters[CLOUD_PROVIDER][:64]!r}; known here: "
            f"{', '.join(sorted(context.clouds.known))}"
        )
    if problem.kind is ProblemKind.OTHER_CLOUD:
        owner = next(name for name, one in context.clouds.known.items() if problem.key in one.parameter_names)
        return f"{problem.key!r} is a parameter of {owner}, and the class is for {facts.rules.name}"
    return problem.message


def _verdict(context: Context, manifest: Manifest, facts: ClassFacts) -> Verdict:
    if context.report.has_error(manifest.subject, manifest.file):
        volumes = "none: the driver refuses this class"
    elif not facts.encrypted:
        volumes = "NOT encrypted: the host can read them"
    elif is_template(facts.key_id):
        volumes = f"encrypted in the guest, each with the key of its name: {facts.key_id}"
    else:
        volumes = f"encrypted in the guest, all with the key {facts.key_id}"
    return Verdict(Place(manifest.file, manifest.body.line), manifest.name, volumes)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
