"""What EC2 refuses, and with which code."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.fakes.ec2.objects import VolumeFields
from tests.fakes.ec2.rules import Ec2Error

#: (sizes in GiB, iops, iops per GiB, throughput), from the API reference; kept apart from the driver's own.
_TYPES: Mapping[str, tuple[tuple[int, int], tuple[int, int] | None, int, tuple[int, int] | None]] = {
    "gp3": ((1, 65536), (3000, 80000), 500, (125, 2000)),
    "gp2": ((1, 16384), None, 0, None),
    "io1": ((4, 16384), (100, 64000), 50, None),
    "io2": ((4, 65536), (100, 256000), 1000, None),
    "st1": ((125, 16384), None, 0, None),
    "sc1": ((125, 16384), None, 0, None),
    "standard": ((1, 1024), None, 0, None),
}
_MAXIMUM_IDS = 500
_MAXIMUM_VALUES = 200
_MAXIMUM_TAGS = 50


def object_id(text: str, kind: str) -> None:
    """Refuse a malformed id."""
    if not re.fullmatch(rf"{kind}-([0-9a-f]{{8}}|[0-9a-f]{{17}})", text, re.ASCII):
        raise Ec2Error("InvalidParameterValue", f"Value ({text}) for parameter is invalid.")


def client_token(token: str) -> None:
    """Refuse one that is too long."""
    if len(token) > 64 or not token.isascii():
        raise Ec2Error("InvalidParameterValue", "clientToken: at most 64 ASCII characters")


def new_volume(arguments: Mapping[str, Any], snapshot_size: int) -> VolumeFields:
    """The fields of a volume to create."""
    volume_type = arguments.get("VolumeType", "gp2")
    size = arguments.get("Size", snapshot_size)
    if size < snapshot_size:
        raise Ec2Error("InvalidParameterValue", "The volume can't be smaller than the snapshot")
    iops, throughput = arguments.get("Iops"), arguments.get("Throughput")
    _figures(volume_type, size, iops, throughput)
    if volume_type == "gp3":
        iops, throughput = iops or 3000, throughput or 125
    elif volume_type == "gp2":
        iops = max(100, 3 * size)
    return VolumeFields(size, volume_type, iops, throughput, new_tags(arguments, "volume"))


def modified_volume(current: VolumeFields, arguments: Mapping[str, Any]) -> VolumeFields:
    """The fields of a volume after a modification."""
    if not {"Size", "VolumeType", "Iops", "Throughput"} & set(arguments):
        raise Ec2Error("InvalidParameterCombination", "Nothing to modify")
    size = arguments.get("Size", current.size)
    if size < current.size:
        raise Ec2Error("InvalidParameterValue", "New size cannot be smaller than existing size")
    volume_type = arguments.get("VolumeType", current.volume_type)
    iops, throughput = arguments.get("Iops"), arguments.get("Throughput")
    if volume_type == current.volume_type and _TYPES[volume_type][1] is not None:
        iops = iops or current.iops
    if volume_type == current.volume_type and _TYPES[volume_type][3] is not None:
        throughput = throughput or current.throughput
    _figures(volume_type, size, iops, throughput)
    if volume_type == "gp3":
        iops, throughput = iops or 3000, throughput or 125
    elif volume_type == "gp2":
        iops = max(100, 3 * size)
    changed = VolumeFields(size, volume_type, iops, throughput, current.tags, current.attached_to)
    if changed == current:
        raise Ec2Error("InvalidParameterValue", "The volume is that already")
    return changed


def _figures(volume_type: str, size: int, iops: int | None, throughput: int | None) -> None:
    if volume_type not in _TYPES:
        raise Ec2Error("UnknownVolumeType", f"Unsupported volume type '{volume_type}'")
    sizes, all_iops, per_gib, all_throughput = _TYPES[volume_type]
    if not sizes[0] <= size <= sizes[1]:
        raise Ec2Error("InvalidParameterValue", f"Volume of {size}GiB is not allowed for {volume_type}")
    for name, value, allowed in (("iops", iops, all_iops), ("throughput", throughput, all_throughput)):
        if value is not None and allowed is None:
            raise Ec2Error("InvalidParameterCombination", f"{name} is not supported for {volume_type}")
        if value is not None and allowed is not None and not allowed[0] <= value <= allowed[1]:
            raise Ec2Error("InvalidParameterValue", f"{name} {value}")
    if volume_type in ("io1", "io2") and iops is None:
        raise Ec2Error("MissingParameter", "The request must contain the parameter iops")
    if iops and all_iops and iops > max(all_iops[0], per_gib * size):
        raise Ec2Error("InvalidParameterValue", f"Iops to size ratio is too high; maximum is {per_gib}")
    if throughput and throughput > 125 and throughput * 4 > (iops or 3000):
        raise Ec2Error("InvalidParameterValue", "Throughput to iops ratio is too high; maximum is 0.25")


def new_tags(arguments: Mapping[str, Any], kind: str) -> dict[str, str]:
    """The tags of an object to create."""
    found: dict[str, str] = {}
    for specification in arguments.get("TagSpecifications", ()):
        if specification.get("ResourceType") != kind:
            raise Ec2Error("InvalidParameterValue", "ResourceType is not what is created")
        found |= tags(specification.get("Tags", ()))
    return tag_count(found)


def tags(given: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Checked tags. EC2 takes more characters than these; other services do not."""
    found = {}
    for tag in given:
        key, value = tag["Key"], tag.get("Value", "")
        if key.lower().startswith("aws:") or not 0 < len(key) <= 128 or len(value) > 256:
            raise Ec2Error("InvalidParameterValue", f"Tag {key}")
        if not re.fullmatch(r"[\w +\-=.:/@]*", key + value):
            raise Ec2Error("InvalidParameterValue", f"Tag {key} has characters that not every service takes")
        if key in found:
            raise Ec2Error("InvalidParameterValue", f"Tag {key} is given twice")
        found[key] = value
    return found


def tag_count(found: dict[str, str]) -> dict[str, str]:
    """Refuse too many."""
    if len(found) > _MAXIMUM_TAGS:
        raise Ec2Error("TagLimitExceeded")
    return found


def known(ids: Sequence[str], seen: Collection[str], kind: str, code: str) -> None:
    """Refuse a question about an object that is not seen: one spoils the whole call."""
    if len(ids) > _MAXIMUM_IDS:
        raise Ec2Error("InvalidParameterValue", f"at most {_MAXIMUM_IDS} ids")
    for one in ids:
        object_id(one, kind)
    for one in ids:
        if one not in seen:
            raise Ec2Error(code, f"'{one}' does not exist.")


def filters(arguments: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Checked filters."""
    given: Sequence[Mapping[str, Any]] = arguments.get("Filters", ())
    if sum(len(one.get("Values", ())) for one in given) > _MAXIMUM_VALUES:
        raise Ec2Error("FilterLimitExceeded")
    for one in given:
        for value in one.get("Values", ()):
            if re.search(r"[*?\\]", value):
                raise Ec2Error("InvalidParameterValue", "a wildcard, which this driver never means")
    return given


def matches(answer: Mapping[str, Any], one: Mapping[str, Any], id_name: str) -> bool:
    """Whether a filter lets the object through."""
    name, values = one["Name"], one.get("Values", ())
    found = {tag["Key"]: tag["Value"] for tag in answer.get("Tags", ())}
    if name.startswith("tag:"):
        return found.get(name.removeprefix("tag:")) in values
    if name == "tag-key":
        return bool(set(found) & set(values))
    fields = {"volume-id": "VolumeId", "snapshot-id": "SnapshotId"}
    if name not in fields or (name == "snapshot-id" and id_name != "SnapshotId"):
        raise Ec2Error("InvalidParameterValue", f"The filter '{name}' is invalid")
    return answer[fields[name]] in values


def page(arguments: Mapping[str, Any], *, by_id: bool) -> tuple[int, int]:
    """Length and start of the page."""
    size = arguments.get("MaxResults")
    if size is not None and by_id:
        raise Ec2Error("InvalidParameterCombination", "MaxResults can't be used with ids")
    if size is not None and not 5 <= size <= 1000:
        raise Ec2Error("InvalidParameterValue", "MaxResults is not between 5 and 1000")
    match = re.fullmatch(r"page-([0-9]+)", arguments.get("NextToken", "page-0"))
    if match is None:
        raise Ec2Error("InvalidNextToken")
    return size or 1000, int(match[1])
