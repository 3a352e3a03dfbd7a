"""The cloud's side: who we are there, what we may do, and its clock."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from cli.doctor.model import Finding, fail, ok, warn
from cli.kubernetes_api import NoAnswer
from cli.scene import Scene, Skipped, cause
from providers.errors import DeadlineError, ProviderError
from providers.interface import BackendDiagnosis

_WARN_SECONDS: Final = 5.0
"""Server times are whole seconds, and an answer takes a moment."""
_FAIL_SECONDS: Final = 60.0
"""Tokens and certificates that were just made count as not valid yet."""


def access(scene: Scene) -> Iterable[Finding]:
    """The provider's settings are complete, and the backend answers."""
    if isinstance(scene.cloud, str):
        if not scene.cloud_wanted:
            raise Skipped(scene.cloud)
        return [fail(scene.cloud, "correct the variable that the message names; docs/flags.md lists them")]
    try:
        volumes = scene.cloud.volumes()
    except ProviderError as error:
        return [
            fail(
                f"{scene.cloud.provider.name}: volumes can't be listed: {cause(error)}",
                "check the controller's credentials (cloud-identity), what they may do "
                "(cloud-permissions), and the network from here to the cloud's API",
            )
        ]
    return [ok(f"{scene.cloud.provider.name}: {len(volumes)} volume(s) of this driver")]


def identity(scene: Scene) -> Iterable[Finding]:
    """The cloud accepts the credentials; it says whose they are."""
    diagnosis = _diagnosis(scene, "who it takes us for")
    try:
        who = diagnosis.identity(scene.require_cloud().deadline())
    except DeadlineError:
        raise Skipped("the cloud did not say in time whose credentials these are") from None
    except ProviderError as error:
        return [
            fail(
                f"the cloud does not say whose credentials these are: {cause(error)}",
                "give the controller credentials that are valid (docs/aws.md, docs/azure.md), and a way to "
                "the cloud's API; run the doctor with the same ones (in the controller's pod, or with the "
                "same environment)",
            )
        ]
    return [ok(f"the cloud takes us for {who}")]


def permissions(scene: Scene) -> Iterable[Finding]:
    """Nothing that the driver does is forbidden. Changes are tried as dry runs, which change nothing."""
    diagnosis = _diagnosis(scene, "what we may do")
    try:
        answers = diagnosis.permissions(scene.require_cloud().deadline())
    except ProviderError as error:
        raise Skipped(f"permissions can't be asked for: {cause(error)}") from None
    found: list[Finding] = [
        fail(
            f"the permission {one.name} is missing{f' ({one.detail})' if one.detail else ''}",
            f"add {one.name} to the controller's role, as in deploy/aws/iam-policy.json or "
            "deploy/azure/role.json",
        )
        for one in answers
        if one.granted is False
    ]
    granted = [one.name for one in answers if one.granted]
    if granted and not found:
        found.append(ok(f"granted: {', '.join(granted)}"))
    untried = [f"{one.name} ({one.detail})" for one in answers if one.granted is None]
    if untried:
        found.append(Finding.skipped(f"not tried: {', '.join(untried)}"))
    return found


def api_clock(scene: Scene) -> Iterable[Finding]:
    """This machine's clock and the API server's agree."""
    cluster = scene.require_cluster()
    before = scene.now()
    try:
        answer = cluster.get("/version")
    except NoAnswer as error:
        raise Skipped(str(error)) from None
    if answer is None or answer.sent_at is None:
        raise Skipped("the API server's answer has no Date header")
    return [_compared("the API server", answer.sent_at.timestamp(), before, scene.now())]


def cloud_clock(scene: Scene) -> Iterable[Finding]:
    """This machine's clock and the cloud's agree."""
    diagnosis = _diagnosis(scene, "what time it is there")
    before = scene.now()
    try:
        there = diagnosis.backend_time(scene.require_cloud().deadline())
    except ProviderError as error:
        raise Skipped(f"the cloud can't be asked for its time: {cause(error)}") from None
    if there is None:
        raise Skipped("the cloud's answers do not tell the time")
    return [_compared("the cloud", there, before, scene.now())]


def _compared(whose: str, there: float, before: float, after: float) -> Finding:
    # Its time was taken between the two of ours, and cut to a second.
    skew = max(0.0, before - (there + 1), there - after)
    if skew < _WARN_SECONDS:
        return ok(f"the clocks here and of {whose} agree within {_WARN_SECONDS:.0f} seconds")
    text = (
        f"the clock here differs from that of {whose} by {skew:.0f} seconds (here "
        f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(before))}, there "
        f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(there))})"
    )
    fix = "let this machine's clock follow a time server (chrony): signatures and tokens depend on it"
    return fail(text, fix) if skew >= _FAIL_SECONDS else warn(text, fix)


def _diagnosis(scene: Scene, question: str) -> BackendDiagnosis:
    provider = scene.require_cloud().provider
    if not isinstance(provider, BackendDiagnosis):
        raise Skipped(f"the provider {provider.name!r} has no way to ask {question}")
    return provider
