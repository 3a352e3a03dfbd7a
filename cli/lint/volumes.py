"""PersistentVolumes of this driver, as they are written by hand."""

from __future__ import annotations

from typing import Final

from cli.lint.capabilities import why_no_file_system
from cli.lint.claims import check_access
from cli.lint.context import Context
from cli.lint.located import Block, Manifest, block_at, text_at
from cli.lint.storage_classes import check_driver_name, check_mount_options
from cli.pod_policy import DRIVER
from driver.disk_id import DISK_KEYS, disk_id
from driver.encryption import ENCRYPT_TYPE, encryption_problems
from driver.errors import DriverError
from driver.mountinfo import METADATA_KEYS
from driver.parameters import CLOUD_PARAMETERS, CLOUD_PROVIDER, FS_TYPE, looks_like_credential, nearest
from driver.problems import ProblemKind

_READ: Final = (*METADATA_KEYS, *DISK_KEYS, CLOUD_PROVIDER)
#: What a provisioned volume's attributes hold besides.
_KNOWN: Final = frozenset(
    {*_READ, FS_TYPE, "availability-zone", "azure-disk-name"}.union(*CLOUD_PARAMETERS.values())
)


def check_volume(context: Context, manifest: Manifest) -> None:
    """All rules of a PersistentVolume."""
    spec = block_at(manifest.body, "spec")
    csi = block_at(spec, "csi")
    driver = text_at(csi, "driver")
    check_driver_name(context, manifest, csi, "driver", driver)
    if driver != DRIVER:
        return
    check_access(context, manifest, spec)
    check_mount_options(context, manifest, spec)
    attributes = block_at(csi, "volumeAttributes")
    given = _strings(context, manifest, attributes)
    for problem in encryption_problems(given):
        context.note_at(problem.kind, manifest, attributes, problem.key, problem.message)
    _check_names(context, manifest, attributes)
    refusal = why_no_file_system(text_at(csi, "fsType"), encrypted=ENCRYPT_TYPE in given)
    if refusal is not None:
        context.note_at(ProblemKind.FILE_SYSTEM, manifest, csi, "fsType", refusal)
    _check_disk(context, manifest, csi, given)


def _strings(context: Context, manifest: Manifest, attributes: Block) -> dict[str, str]:
    given = {}
    for key, value in attributes.items():
        if isinstance(value, str):
            given[key] = value
        else:
            context.note_at(
                "parameter-not-string",
                manifest,
                attributes,
                key,
                f"{key[:64]!r} is no string; put it in quotes",
            )
    return given


def _check_names(context: Context, manifest: Manifest, attributes: Block) -> None:
    """The driver drops attributes that it does not read in silence: a misspelled one must be found here."""
    for key in attributes:
        if key in _KNOWN or "/" in key:
            continue
        if key.lower().startswith("cdh"):
            context.note_at(
                ProblemKind.NO_EFFECT,
                manifest,
                attributes,
                key,
                f"attribute {key[:64]!r} has no effect: the volume is not encrypted by it",
            )
        elif looks_like_credential(key):
            context.note_at(
                ProblemKind.CREDENTIAL,
                manifest,
                attributes,
                key,
                f"attribute {key[:64]!r} looks like a credential; PersistentVolumes are public",
            )
        else:
            guess = nearest(key, _READ)
            if guess is not None:
                context.note_at(
                    "unknown-attribute",
                    manifest,
                    attributes,
                    key,
                    f"nothing reads {key[:64]!r}; did you mean {guess!r}?",
                )


def _check_disk(context: Context, manifest: Manifest, csi: Block, given: dict[str, str]) -> None:
    handle = text_at(csi, "volumeHandle")
    if not handle:
        context.note_at("volume-disk", manifest, csi, "volumeHandle", "volumeHandle is missing")
        return
    named = next((key for key in DISK_KEYS if given.get(key)), None)
    if named is None:
        return  # the controller looks it up by the handle, when the volume is published
    try:
        disk_id(handle, given)
    except DriverError as error:
        line = csi.line_of("volumeAttributes", named)
        context.note("volume-disk", manifest, line, str(error))
