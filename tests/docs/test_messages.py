"""Whoever meets an error message finds it: all of them in docs/messages.md, the frequent ones explained."""

from __future__ import annotations

import ast
import re

from deploy import messages
from tests.docs.pages import TOP

_TROUBLESHOOTING = (TOP / "docs" / "troubleshooting.md").read_text()
_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def test_the_page_of_messages_has_what_the_sources_say() -> None:
    assert messages.PAGE.read_text() == messages.render(), "run: make messages"


def test_every_kind_of_error_of_the_driver_and_of_providers_has_messages_there() -> None:
    found = {message.error for message in messages.messages("driver", "providers")}
    assert {"InvalidArgument", "NotFound", "AlreadyExists", "FailedPrecondition", "Unavailable"} <= found
    assert {"Aborted", "OutOfRange", "Internal", "Unimplemented", "OutcomeUncertain"} <= found
    assert {"InUseError", "QuotaExceededError", "OutcomeUnknownError", "DeadlineError"} <= found
    assert len(messages.messages("driver", "providers")) > 200
    rules = {message.rule for message in messages.messages("agent")}
    assert {"header-not-authenticated", "policy-key", "data-hub-failed"} <= rules


def test_a_message_shows_its_constants_and_not_its_values() -> None:
    texts = {message.text: message.status for message in messages.messages("driver", "providers")}
    assert texts["awsKmsKeyId is set and awsEncrypted is false; leave one of them out"] == "INVALID_ARGUMENT"
    assert texts["cloudProvider is …, but this controller serves …; start a controller with --provider …"]
    assert texts["no volume … at provider …"] == "NOT_FOUND"
    assert texts["no zone has room for the volume"] == "RESOURCE_EXHAUSTED"
    assert texts["endpoint …: expected unix:///absolute/path/of/the/socket"] == "the process ends"


def test_the_messages_that_are_explained_exist() -> None:
    known = {message.text for message in messages.messages("driver", "providers")} | other_texts()
    for heading, least in (("From the driver", 25), ("A volume's condition", 8)):
        explained = _ROW.findall(_TROUBLESHOOTING.split(f"## {heading}\n")[1].split("\n## ")[0])
        assert len(explained) >= least
        assert [text for text in explained if text not in known] == []


def other_texts() -> set[str]:
    """All texts of the driver and the providers, also those that no error is made with as they stand."""
    found: set[str] = set()
    for package in ("driver", "providers"):
        for file in (TOP / package).rglob("*.py"):
            tree = ast.parse(file.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant | ast.JoinedStr):
                    found.update(messages.texts(node, messages, tree))
    return {re.sub(r"\{\w+\}", "…", text) for text in found}
