"""Evaluates an IAM policy as EC2 does for the driver's actions (service authorization reference, EC2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tests.fakes.ec2.rules import Ec2Error

CALLER = "arn:aws:sts::123456789012:assumed-role/confidential-csi/controller"

Tags = Mapping[str, str]


@dataclass(frozen=True)
class Question:
    """May this be done to that?"""

    action: str
    resource: str
    request_tags: Tags = field(default_factory=dict)
    resource_tags: Tags = field(default_factory=dict)
    create_action: str = ""

    def value(self, key: str) -> list[str]:
        """Of a condition key; empty when the request has none."""
        kind, _, name = key.partition("/")
        match kind:
            case "aws:RequestTag":
                return [self.request_tags[name]] if name in self.request_tags else []
            case "aws:ResourceTag":
                return [self.resource_tags[name]] if name in self.resource_tags else []
            case "aws:TagKeys":
                return list(self.request_tags)
            case "ec2:CreateAction":
                return [self.create_action] if self.create_action else []
        raise AssertionError(f"unknown condition key {key}")


class Policy:
    """A policy document; nothing that it does not allow is allowed.

    Attributes:
        used: the statements that allowed something, by their Sid, with the action.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._statements: Sequence[Mapping[str, Any]] = document["Statement"]
        self.used: set[tuple[str, str]] = set()

    def check(self, questions: Iterator[Question]) -> None:
        """Refuse a call of which one part is not allowed.

        Raises:
            Ec2Error: UnauthorizedOperation.
        """
        for question in questions:
            allowing = [one for one in self._statements if _allows(one, question)]
            if not allowing:
                raise Ec2Error("UnauthorizedOperation", _refusal(question), 403)
            self.used |= {(one["Sid"], question.action) for one in allowing}

    def granted(self) -> set[tuple[str, str]]:
        """Everything that it allows, as in ``used``."""
        return {
            (one["Sid"], action.removeprefix("ec2:"))
            for one in self._statements
            for action in _several(one["Action"])
        }


def questions(action: str, arguments: Mapping[str, Any], tags_of: Mapping[str, Tags]) -> Iterator[Question]:
    """What has to be allowed for a call; ``tags_of`` holds the tags of existing objects."""
    given = {
        tag["Key"]: tag.get("Value", "")
        for specification in arguments.get("TagSpecifications", ())
        for tag in specification.get("Tags", ())
    }

    def existing(action_name: str, object_id: str, tags: Tags | None = None) -> Question:
        return Question(action_name, _arn(object_id), tags or {}, tags_of.get(object_id, {}))

    match action:
        case "CreateVolume":
            yield Question(action, _arn("vol-*"), given)
            if "SnapshotId" in arguments:
                yield existing(action, arguments["SnapshotId"])
            yield Question("CreateTags", _arn("vol-*"), given, create_action=action)
        case "CreateSnapshot":
            yield existing(action, arguments["VolumeId"])
            yield Question(action, _arn("snap-*"), given)
            yield Question("CreateTags", _arn("snap-*"), given, create_action=action)
        case "DeleteVolume" | "ModifyVolume":
            yield existing(action, arguments["VolumeId"])
        case "DeleteSnapshot":
            yield existing(action, arguments["SnapshotId"])
        case "CreateTags" | "DeleteTags":
            tags = {tag["Key"]: tag.get("Value", "") for tag in arguments["Tags"]}
            for object_id in arguments["Resources"]:
                yield existing(action, object_id, tags)
        case _:
            yield Question(action, "*")


def _allows(statement: Mapping[str, Any], question: Question) -> bool:
    assert statement["Effect"] == "Allow"
    return (
        f"ec2:{question.action}" in _several(statement["Action"])
        and any(fnmatchcase(question.resource, pattern) for pattern in _several(statement["Resource"]))
        and all(
            _holds(operator, question.value(key), _several(wanted))
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _holds(operator: str, values: Sequence[str], wanted: Sequence[str]) -> bool:
    match operator:
        case "StringEquals":
            return any(value in wanted for value in values)
        case "StringLike":
            return any(fnmatchcase(value, pattern) for value in values for pattern in wanted)
        case "ForAllValues:StringEquals":
            return all(value in wanted for value in values)
    raise AssertionError(f"unknown operator {operator}")


def _refusal(question: Question) -> str:
    """The words of EC2, then what a test's author wants to know."""
    return (
        f"You are not authorized to perform this operation. User: {CALLER} is not authorized to perform: "
        f"ec2:{question.action} on resource: {question.resource} because no identity-based policy allows the "
        f"ec2:{question.action} action ({question})"
    )


def _arn(object_id: str) -> str:
    if object_id.startswith("snap-"):
        return f"arn:aws:ec2:us-east-1::snapshot/{object_id}"
    return f"arn:aws:ec2:us-east-1:123456789012:volume/{object_id}"


def _several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
