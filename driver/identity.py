"""The Identity service: who this plugin is, what it offers, whether it is ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version

import grpc

from proto import csi_pb2

PLUGIN_NAME = "caa-csi-block.csi.confidentialcontainers.io"

_DISTRIBUTION = "confidential-csi"

_LOG = logging.getLogger(__name__)

_Capability = csi_pb2.PluginCapability


def always_ready() -> str | None:
    """The readiness of a role that needs nothing of its machine."""
    return None


class IdentityService:
    """Answers without asking any cloud.

    Args:
        can_expand: volumes can be grown while they are in use.
        has_zones: volumes can be used in certain zones only.
        readiness: tells at once why the plugin can't serve now; None when it can.
    """

    def __init__(
        self,
        *,
        can_expand: bool,
        has_zones: bool = False,
        readiness: Callable[[], str | None] = always_ready,
    ) -> None:
        self._can_expand = can_expand
        self._has_zones = has_zones
        self._readiness = readiness
        self._told: str | None = None
        self._version = version(_DISTRIBUTION)

    def GetPluginInfo(
        self,
        _request: csi_pb2.GetPluginInfoRequest,
        _context: grpc.ServicerContext,
    ) -> csi_pb2.GetPluginInfoResponse:
        return csi_pb2.GetPluginInfoResponse(name=PLUGIN_NAME, vendor_version=self._version)

    def GetPluginCapabilities(
        self,
        _request: csi_pb2.GetPluginCapabilitiesRequest,
        _context: grpc.ServicerContext,
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        service = _Capability.Service
        capabilities = [_Capability(service=service(type=service.CONTROLLER_SERVICE))]
        if self._has_zones:
            capabilities.append(_Capability(service=service(type=service.VOLUME_ACCESSIBILITY_CONSTRAINTS)))
        if self._can_expand:
            online = _Capability.VolumeExpansion(type=_Capability.VolumeExpansion.ONLINE)
            capabilities.append(_Capability(volume_expansion=online))
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=capabilities)

    def Probe(
        self,
        _request: csi_pb2.ProbeRequest,
        _context: grpc.ServicerContext,
    ) -> csi_pb2.ProbeResponse:
        reason = self._readiness()
        if reason != self._told:  # a probe comes every few seconds
            self._told = reason
            if reason is None:
                _LOG.info("ready")
            else:
                _LOG.warning("not ready", extra={"fields": {"reason": reason}})
        response = csi_pb2.ProbeResponse()
        response.ready.value = reason is None
        return response
