"""ControllerModifyVolume: properties of a volume that can change, from a VolumeAttributesClass."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from driver.controller_base import ControllerBase
from driver.errors import InvalidArgument, Unimplemented, change_may_be_sent
from proto import csi_pb2
from providers.interface import VolumeModifier


class ModifyRpcs(ControllerBase):
    """ControllerModifyVolume; offered when the provider is a modifier."""

    def ControllerModifyVolume(
        self, request: csi_pb2.ControllerModifyVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerModifyVolumeResponse:
        """Make the volume what the class says. Expansion may come at the same time: the provider, not a
        lock, puts the two together, since clouds limit how often a volume can be modified."""
        if not isinstance(self._provider, VolumeModifier):
            raise Unimplemented(f"provider {self._provider.name!r} can't modify volumes")
        parameters = self._mutable_parameters(request.mutable_parameters)
        deadline = self._deadline(context)
        volume = self._volume(request.volume_id, deadline)
        if parameters:
            with change_may_be_sent(f"modifying volume {request.volume_id!r}"):
                self._provider.modify_volume(volume.handle, parameters, deadline)
        return csi_pb2.ControllerModifyVolumeResponse()

    def _mutable_parameters(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """Parameters of a VolumeAttributesClass; their values are the provider's to check.

        Raises:
            InvalidArgument: one that can't change, or that nobody knows.
        """
        known = (
            self._provider.mutable_parameter_names
            if isinstance(self._provider, VolumeModifier)
            else frozenset[str]()
        )
        unknown = sorted(set(parameters) - known)
        if unknown:
            raise InvalidArgument(
                f"mutable parameter {unknown[0][:64]!r} can't be changed; this driver can change: "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        return dict(parameters)
