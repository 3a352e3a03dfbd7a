"""EC2's query protocol: form-encoded parameters in, XML out, both by botocore's own model of the service.

A parameter that the model does not know is refused, and so is an answer with a member it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

import botocore.session
from botocore.model import ListShape, OperationModel, Shape, StructureShape

from tests.fakes.ec2.rules import Ec2Error

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


@lru_cache(maxsize=1)
def _service() -> Any:
    return botocore.session.get_session().get_service_model("ec2")


def operation(action: str) -> OperationModel:
    """The model of an action."""
    model: OperationModel = _service().operation_model(action)
    return model


def read_request(body: bytes) -> tuple[str, dict[str, Any]]:
    """Action and arguments of a request.

    Raises:
        Ec2Error: UnknownParameter.
    """
    fields = dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True))
    action = fields.pop("Action")
    fields.pop("Version")
    used: set[str] = set()
    shape = operation(action).input_shape
    arguments = _read(shape, "", fields, used) if shape is not None else {}
    unknown = sorted(set(fields) - used)
    if unknown:
        raise Ec2Error("UnknownParameter", f"The parameter {unknown[0]} is not recognized")
    return action, arguments or {}


def _read(shape: Shape, prefix: str, fields: Mapping[str, str], used: set[str]) -> Any:
    if isinstance(shape, StructureShape):
        found = {}
        for name, member in shape.members.items():
            value = _read(member, _joined(prefix, _query_name(name, member)), fields, used)
            if value is not None:
                found[name] = value
        return found or None
    if isinstance(shape, ListShape):
        items: list[Any] = []
        while (item := _read(shape.member, f"{prefix}.{len(items) + 1}", fields, used)) is not None:
            items.append(item)
        return items or None
    if prefix not in fields:
        return None
    used.add(prefix)
    text = fields[prefix]
    match shape.type_name:
        case "integer" | "long":
            return int(text)
        case "boolean":
            return text == "true"
        case "timestamp":
            return datetime.fromisoformat(text)
        case _:
            return text


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _query_name(name: str, shape: Shape) -> str:
    if "queryName" in shape.serialization:
        return str(shape.serialization["queryName"])
    location = str(shape.serialization.get("name", name))
    return location[0].upper() + location[1:]


def write_answer(action: str, answer: Mapping[str, Any], request_id: str) -> bytes:
    """The body of an answer."""
    root = ElementTree.Element(f"{action}Response", xmlns=NAMESPACE)
    ElementTree.SubElement(root, "requestId").text = request_id
    shape = operation(action).output_shape
    if shape is not None:
        _write(shape, answer, root)
    else:
        ElementTree.SubElement(root, "return").text = "true"
    return _text(root)


def _write(shape: Shape, value: Any, element: ElementTree.Element) -> None:
    if isinstance(shape, StructureShape):
        unknown = set(value) - set(shape.members)
        assert not unknown, f"{shape.name} has no {unknown}"
        for name, member in shape.members.items():
            if name in value:
                child = ElementTree.SubElement(element, member.serialization.get("name", name))
                _write(member, value[name], child)
    elif isinstance(shape, ListShape):
        for item in value:
            _write(shape.member, item, ElementTree.SubElement(element, "item"))
    elif isinstance(value, bool):
        element.text = "true" if value else "false"
    elif isinstance(value, datetime):
        element.text = value.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    else:
        element.text = str(value)


def write_error(error: Ec2Error, request_id: str) -> bytes:
    """The body of an answer that is an error."""
    root = ElementTree.Element("Response")
    one = ElementTree.SubElement(ElementTree.SubElement(root, "Errors"), "Error")
    ElementTree.SubElement(one, "Code").text = error.code
    ElementTree.SubElement(one, "Message").text = error.message
    ElementTree.SubElement(root, "RequestID").text = request_id
    return _text(root)


def _text(root: ElementTree.Element) -> bytes:
    return ElementTree.tostring(root, encoding="unicode").encode()


def is_identity_request(body: bytes) -> bool:
    """Whether this is STS's GetCallerIdentity: the SDK sends it to the same address, if it has just one."""
    return dict(parse_qsl(body.decode())) == {"Action": "GetCallerIdentity", "Version": "2011-06-15"}


def write_identity(arn: str) -> bytes:
    """STS's answer, which nobody is refused."""
    root = ElementTree.Element("GetCallerIdentityResponse", xmlns="https://sts.amazonaws.com/doc/2011-06-15/")
    result = ElementTree.SubElement(root, "GetCallerIdentityResult")
    for name, value in (("Arn", arn), ("UserId", "AROATEST:controller"), ("Account", arn.split(":")[4])):
        ElementTree.SubElement(result, name).text = value
    return _text(root)
