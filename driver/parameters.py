"""StorageClass parameters, strictly: a misspelled key must never end as an unencrypted disk."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from driver.encryption import ENCRYPT_TYPE, KBS_KEY_ID, encryption_problems
from driver.errors import InvalidArgument
from driver.key_path import check_key_template, expand_key_path
from driver.key_template import is_template
from driver.problems import Problem, ProblemKind
from providers.errors import InvalidParameterError
from providers.interface import Encryption, StorageClassRules

CLOUD_PROVIDER = "cloudProvider"
#: Deprecated: the file system type belongs to the volume capability (``csi.storage.k8s.io/fstype``).
FS_TYPE = "fsType"

#: Parameters of every cloud.
COMMON = (CLOUD_PROVIDER, ENCRYPT_TYPE, KBS_KEY_ID, FS_TYPE)

#: Kubernetes' own keys: the provisioner adds them, users don't choose them.
KUBERNETES_PREFIX = "csi.storage.k8s.io/"
_KUBERNETES_FS_TYPE = f"{KUBERNETES_PREFIX}fstype"
_FS_TYPE_KEYS = (FS_TYPE, _KUBERNETES_FS_TYPE)
_LABELS = ("pvc/name", "pvc/namespace", "pv/name")

#: The clouds' parameters, by the name of the provider that takes them: one of a provider that is not
#: installed is refused by that name, not as a misspelling.
CLOUD_PARAMETERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "aws": frozenset(
            {
                "awsRegion",
                "awsAvailabilityZone",
                "awsVolumeType",
                "awsIops",
                "awsThroughput",
                "awsKmsKeyId",
                "awsEncrypted",
            }
        ),
        "azure": frozenset(
            {
                "azureSubscriptionId",
                "azureResourceGroup",
                "azureLocation",
                "azureDiskSKU",
                "azureDiskSku",
                "azureDiskIops",
                "azureDiskMbps",
                "azureDiskEncryptionSetId",
            }
        ),
        "libvirt": frozenset({"cloudProviderVolumePath"}),
    }
)

#: Bytes, keys and values together: the volume context repeats them and holds at most 4 KiB in all.
MAXIMUM_BYTES = 2048

_CREDENTIAL = re.compile(
    r"secret|passw|token|credential|connectionstring|sas|(access|private|api|account|shared|storage)key",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class VolumeSpec:
    """What a StorageClass asks for, checked."""

    encryption: Encryption | None
    """As written: the key id may be a template."""
    fs_type: str | None
    """Of the deprecated parameter; it must equal the capability's."""
    provider_parameters: Mapping[str, str]
    """Those that the provider declared, with values it accepts."""
    context: Mapping[str, str]
    """Every parameter given, for the PV's attributes; all are public."""
    labels: Mapping[str, str]
    """PVC and PV names."""

    def encryption_of_new(self) -> Encryption | None:
        """How a volume of this claim is encrypted, the key id expanded.

        Raises:
            InvalidArgument: it can't be expanded, or not to a key path.
        """
        if self.encryption is None:
            return None
        return replace(self.encryption, kbs_key_id=expand_key_path(self.encryption.kbs_key_id, self.labels))

    def encryption_of_copy(self, source: Encryption | None) -> Encryption | None:
        """How a copy is encrypted. It carries its source's LUKS header, which opens with the source's key:
        that is what a templated key id stands for then. A literal one stands for itself.

        Raises:
            InvalidArgument: as for :meth:`encryption_of_new`.
        """
        wanted = self.encryption_of_new()
        if self.encryption is None or source is None or not is_template(self.encryption.kbs_key_id):
            return wanted
        return replace(self.encryption, kbs_key_id=source.kbs_key_id)


def parse_parameters(
    parameters: Mapping[str, str], provider: StorageClassRules, installed: Iterable[str]
) -> VolumeSpec:
    """Check ``parameters`` against what the driver and ``provider`` take.

    Args:
        installed: names of the providers that this machine could run, for the message.

    Raises:
        InvalidArgument: an unknown key, or a value or combination that can't work.
    """
    for problem in parameter_problems(parameters, provider, installed):
        raise InvalidArgument(problem.message)
    own = _own(parameters)
    return VolumeSpec(
        encryption=Encryption(own[ENCRYPT_TYPE], own[KBS_KEY_ID]) if ENCRYPT_TYPE in own else None,
        fs_type=next((parameters[key] for key in _FS_TYPE_KEYS if key in parameters), None),
        provider_parameters=MappingProxyType(_provider_parameters(own, provider)),
        context=MappingProxyType(own),
        labels=MappingProxyType(
            {
                name: parameters[KUBERNETES_PREFIX + name]
                for name in _LABELS
                if KUBERNETES_PREFIX + name in parameters
            }
        ),
    )


def parameter_problems(
    parameters: Mapping[str, str], provider: StorageClassRules, installed: Iterable[str]
) -> Iterator[Problem]:
    """All that :func:`parse_parameters` would refuse, in the order in which it looks."""
    own = _own(parameters)
    yield from _cloud_problems(own.get(CLOUD_PROVIDER), provider, installed)
    for key in sorted(own):
        if key not in COMMON and key not in provider.parameter_names:
            yield _unknown(key, provider)
    if sum(len(key.encode()) + len(value.encode()) for key, value in own.items()) > MAXIMUM_BYTES:
        yield Problem(
            ProblemKind.TOO_LONG,
            "",
            f"the parameters hold more than {MAXIMUM_BYTES} bytes; shorten their values",
        )
    try:
        provider.validate_parameters(_provider_parameters(own, provider))
    except InvalidParameterError as error:
        yield Problem(ProblemKind.VALUE, _named_first(str(error), own), str(error))
    yield from encryption_problems(own, check_key_template)
    if len({parameters[key] for key in _FS_TYPE_KEYS if key in parameters}) > 1:
        yield Problem(
            ProblemKind.FILE_SYSTEM,
            FS_TYPE,
            f"{FS_TYPE} and {_KUBERNETES_FS_TYPE} differ; leave out {FS_TYPE}",
        )


def _own(parameters: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in parameters.items() if not key.startswith(KUBERNETES_PREFIX)}


def _provider_parameters(own: Mapping[str, str], provider: StorageClassRules) -> dict[str, str]:
    return {key: value for key, value in own.items() if key in provider.parameter_names}


def _named_first(message: str, keys: Iterable[str]) -> str:
    """Which of the parameters a provider's message names first: it is about that one."""
    folded = message.lower()
    # Of two that begin alike the longer one is meant where both fit; a name can have two spellings.
    found = [(folded.find(key.lower()), -len(key), key) for key in keys if key.lower() in folded]
    return min(found)[2] if found else ""


def _cloud_problems(
    name: str | None, provider: StorageClassRules, installed: Iterable[str]
) -> Iterator[Problem]:
    if name is None or name == provider.name:
        return
    if name in installed:
        message = (
            f"{CLOUD_PROVIDER} is {name!r}, but this controller serves {provider.name!r}; "
            f"start a controller with --provider {name}"
        )
    else:
        message = (
            f"{CLOUD_PROVIDER}: the provider {name[:64]!r} is not installed here (installed: "
            f"{', '.join(sorted(installed)) or 'none'}); this controller serves {provider.name!r}"
        )
    yield Problem(ProblemKind.PROVIDER_UNKNOWN, CLOUD_PROVIDER, message)


def _unknown(key: str, provider: StorageClassRules) -> Problem:
    """The problem with a key that nobody reads; its value, which may be a secret, is not in it."""
    shown = repr(key[:64])
    for cloud, names in CLOUD_PARAMETERS.items():
        if key in names:
            return Problem(
                ProblemKind.OTHER_CLOUD,
                key,
                f"parameter {shown} belongs to the provider {cloud!r}, which this controller does not run "
                f"(it serves {provider.name!r}); remove it, or use a controller with --provider {cloud}",
            )
    if key.lower().startswith("cdh"):
        return Problem(
            ProblemKind.NO_EFFECT,
            key,
            f"parameter {shown} has no effect, a volume made with it would not be encrypted; "
            f"use {ENCRYPT_TYPE} (luks2) and {KBS_KEY_ID} (repository/type/tag) instead",
        )
    if looks_like_credential(key):
        return Problem(
            ProblemKind.CREDENTIAL,
            key,
            f"parameter {shown} looks like a credential; parameters are copied to public objects. Give the "
            "controller its credentials by a Secret or a workload identity, and rotate this one",
        )
    # The deprecated one is no advice, unless its case alone is wrong.
    common = [name for name in COMMON if name != FS_TYPE or key.lower() == FS_TYPE.lower()]
    guess = nearest(key, (*common, *provider.parameter_names))
    hint = (
        f"did you mean {guess!r}?"
        if guess
        else f"known: {', '.join(sorted({*COMMON, *provider.parameter_names}))}"
    )
    return Problem(ProblemKind.UNKNOWN, key, f"unknown parameter {shown}; {hint}")


def looks_like_credential(key: str) -> bool:
    """Whether the value of a parameter with this name may be a secret."""
    return _CREDENTIAL.search(re.sub(r"[-_.]", "", key)) is not None


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known name that ``key`` is probably a misspelling of, or what another driver calls the same."""
    plain = {}
    for name in known:
        folded = re.sub(r"[-_.\s]", "", name).lower()
        plain[folded] = name
        # Drivers of one cloud leave its name out: iops for awsIops.
        plain.setdefault(re.sub("^(aws|azure)", "", folded), name)
    matches = difflib.get_close_matches(re.sub(r"[-_.\s]", "", key[:64]).lower(), plain, n=1, cutoff=0.7)
    return plain[matches[0]] if matches else None
