"""The policies refuse nothing that the driver accepts, and accept nothing that its own rules refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from driver.capabilities import HONORED_MOUNT_FLAGS, SUPPORTED_FS_TYPES
from driver.parameters import CLOUD_PARAMETERS
from tests.cluster.admission.driver_rules import MODES, class_refusal, provider_of, volume_refusal
from tests.cluster.admission.policies import ENCRYPTED, FS_TYPE, Admission, refusal, storage_class, volume
from tests.cluster.api import Api

_WORDS = st.sampled_from(
    [
        "",
        "luks",
        "luks2",
        "LUKS2",
        "ext4",
        "xfs",
        "aws",
        "azure",
        "3000",
        "1_000",
        "true",
        "gp3",
        "io2",
        "Premium_LRS",
    ]
) | st.text(max_size=6)
_SEGMENTS = st.sampled_from(
    ["default", "key", "${pvc.name}", "${pvc.namespace}", "${pv.name}", "${x}", ".", "a.b", ""]
)
_KEYS = st.lists(_SEGMENTS, min_size=1, max_size=5).map("/".join) | st.text(max_size=12)
_NAMES = st.sampled_from(
    sorted(
        {
            "encrypt-type",
            "fsType",
            FS_TYPE,
            "cloudProvider",
            "csi.storage.k8s.io/other",
            "encryptType",
            "cdhKey",
        }
    )
    + sorted(CLOUD_PARAMETERS["aws"] | CLOUD_PARAMETERS["azure"] | CLOUD_PARAMETERS["libvirt"])
) | st.text(min_size=1, max_size=8)
_OPTIONS = st.lists(st.sampled_from([*sorted(HONORED_MOUNT_FLAGS), "sync", "discard", "RO"]), max_size=3)


@st.composite
def _parameters(draw: st.DrawFn) -> dict[str, str]:
    given: dict[str, str] = draw(st.dictionaries(_NAMES, _WORDS, max_size=2))
    if draw(st.booleans()):
        given |= {"encrypt-type": draw(st.sampled_from(["luks", "luks2"]))}
        given |= {"kbs-key-id": draw(_KEYS)}
    return given


def _many(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``count`` examples; without an explanation, which would ask the API server hundreds of times."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.mark.parametrize("name", ["aws", "azure", "libvirt", "local"])
def test_classes_pass_exactly_if_the_driver_accepts_them(
    admission: Admission, tmp_path: Path, name: str
) -> None:
    """Both ways, but for the values of the clouds' own parameters, most of which only the driver knows."""
    api = admission.of(name)
    provider = provider_of(name, tmp_path)

    @_many(150)
    @given(parameters=_parameters(), options=_OPTIONS)
    @example(parameters=dict(ENCRYPTED), options=["ro"])
    @example(parameters={"fsType": "xfs"}, options=[])
    @example(parameters={"fsType": "ext4", FS_TYPE: "ext4"}, options=[])
    def compare(parameters: dict[str, str], options: list[str]) -> None:
        manifest = storage_class(parameters, mountOptions=options)
        said, refused = refusal(api, manifest), class_refusal(provider, manifest)
        if not set(parameters) & provider.parameter_names:
            assert (said is None) == (refused is None), (said, refused)
        elif refused is None:
            assert said is None

    compare()


def test_volumes_pass_exactly_if_the_driver_publishes_them(aws: Api) -> None:
    attributes = st.fixed_dictionaries(
        {},
        optional={
            "encrypt-type": st.sampled_from(["luks2", "luks", "LUKS", ""]),
            "kbs-key-id": st.sampled_from(["default/key/1", "a/b", "kbs:///a/b/c", "${pv.name}/b/c"]),
            "cdhKey": st.just("kbs:///a/b/c"),
            "awsSecretKey": st.just("of the older driver, which is dropped"),
            "cloud-volume-path": st.just("vol-0123456789abcdef0"),
        },
    )
    modes = st.lists(st.sampled_from(sorted(MODES)), min_size=1, max_size=2, unique=True).filter(
        # The API server's own rule.
        lambda chosen: "ReadWriteOncePod" not in chosen or len(chosen) == 1
    )
    fs_types = st.sampled_from(["", *sorted(SUPPORTED_FS_TYPES), "ntfs"])

    @_many(150)
    @given(
        attributes=attributes,
        modes=modes,
        fs_type=fs_types,
        options=_OPTIONS,
        volume_mode=st.sampled_from(["Filesystem", "Filesystem", "Filesystem", "Block"]),
    )
    def compare(
        attributes: dict[str, str], modes: list[str], fs_type: str, options: list[str], volume_mode: str
    ) -> None:
        manifest = volume(
            attributes, fs_type, accessModes=modes, mountOptions=options, volumeMode=volume_mode
        )
        said, refused = refusal(aws, manifest), volume_refusal(manifest)
        assert (said is None) == (refused is None), (said, refused)

    compare()
