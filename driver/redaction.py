"""Credentials recognized by their form, wherever they turn up: the net below the one for known values.

SDKs at their most verbose print requests and answers: authorization headers, signatures, tokens in URLs, the
keys that a token service answered with. Nobody tells this process those values beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

STRIPPED: Final = "***stripped***"

#: Names, or ends of names, of headers, of fields in XML, JSON and forms, and of variables and parameters of
#: URLs, whose value is a credential.
_ENDS: Final = "|".join(
    (
        r"authorization",
        r"x-amz-(?:security-token|signature|credential)",
        r"x-aws-ec2-metadata-token",
        r"x-ms-(?:copy-source|encryption-key)",
        r"(?:access|refresh|session|security|web_?identity|federated|bearer|auth)[-_]?token",
        r"identity-header",
        r"id_token",
        r"(?:secret_?access|account|shared_?access|private|subscription|api|storage)[-_]?key",
        r"client_?(?:secret|assertion)",
        r"access_?sas",
        r"pass(?:word|phrase|wd)",
    )
)
#: These stand for themselves only: ``ClientToken`` and ``NextToken`` are no credentials.
_WHOLE: Final = r"cookie|set-cookie|sig|signature|token|secret"

#: With what separates a name from its value: ``name: value``, ``'name': b'value'``, ``name=value``,
#: ``<name>value``.
_NAMED: Final = re.compile(
    rf"""(?P<name>(?<![a-z0-9_-])(?:[a-z0-9_-]*(?:{_ENDS})|{_WHOLE})(?![a-z0-9_-]))
         (?P<between>\\{{0,7}}["']?\s*(?:[:=]|%3d|>)\s*(?:b(?=\\{{0,7}}["']))?)
         (?:(?P<quote>\\{{0,7}}["'])(?P<quoted>.*?)(?P=quote)|(?P<bare>(?:(?:bearer|basic|sharedkey|aws4-hmac-sha256)\s+)?
            [^\s"'&<>]+(?:,\s*(?:signedheaders|signature)=[^\s"'&<>]+)*))""",
    re.IGNORECASE | re.VERBOSE,
)

#: Values that show what they are.
_FORMS: Final = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        (r"(?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*", 0),  # a JSON web token
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", 0),
        (r"(?<=://)[^\s/@:\"']+:[^\s/@\"']+(?=@)", 0),
        (r"(?<=\bbearer )\s*[A-Za-z0-9._~+/-]{16,}=*", re.IGNORECASE),
    )
)

#: Variables of the process whose value is a credential; others tell where one is.
_VARIABLE: Final = re.compile(r"(?:SECRET|PASSWORD|SECRET_ACCESS_KEY|SESSION_TOKEN|AUTHORIZATION_TOKEN)$")
_LEAST_CHARACTERS: Final = 8


def without_credentials(text: str) -> str:
    """``text``, with what looks like a credential replaced."""
    for form in _FORMS:
        text = form.sub(STRIPPED, text)
    return _NAMED.sub(_stripped, text)


def credentials_in(environment: Mapping[str, str]) -> frozenset[str]:
    """The credentials among the variables of a process."""
    return frozenset(
        value
        for name, value in environment.items()
        if _VARIABLE.search(name) and len(value) >= _LEAST_CHARACTERS
    )


def _stripped(match: re.Match[str]) -> str:
    quote = match["quote"] or ""
    return f"{match['name']}{match['between']}{quote}{STRIPPED}{quote}"
