"""Log lines, as text or JSON, that never hold a secret of a request.

Three nets: requests are logged only with their secret fields stripped; while a call is in progress its secret
values are blanked out of every line of the process, tracebacks and third-party messages included; and so is,
always, what looks like a credential (``redaction.py``).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from driver.redaction import STRIPPED, credentials_in, without_credentials
from proto import csi_pb2

LEVELS: Final = ("trace", "debug", "info", "warning", "error")

#: Loggers of the SDKs; below ``trace`` only their warnings count.
_SDK_LOGGERS: Final = ("azure", "boto3", "botocore", "grpc", "msal", "requests", "urllib3")

#: Keys of maps (volume context, parameters) whose values are treated as secrets, besides the fields that
#: the specification marks: ``csi.storage.k8s.io/serviceAccount.tokens`` above all.
_SECRET_KEY = re.compile(
    r"token|secret|passw|credential|private[-_.]?key|access[-_.]?key|sas[-_.]", re.IGNORECASE
)

#: What would begin another line, or steer a terminal.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

#: Shorter values (characters) are stripped from requests, but not searched for in other lines.
_MINIMUM_SEARCHED = 4


def strip_secrets(message: Message) -> Message:
    """A copy of ``message`` for the log: secret values, at any depth, are replaced."""
    copy = type(message)()
    copy.CopyFrom(message)
    _collect(copy, set(), strip=True)
    return copy


def secret_values(message: Message) -> frozenset[str]:
    """The secret values in ``message``, at any depth."""
    found: set[str] = set()
    _collect(message, found, strip=False)
    return frozenset(found)


def _collect(message: Message, found: set[str], *, strip: bool) -> None:
    """Walk the fields of ``message``; note secret values in ``found`` and, if asked, replace them."""
    for field, value in message.ListFields():
        marked = field.GetOptions().Extensions[csi_pb2.csi_secret]
        if _is_map(field):
            for key in list(value):
                if isinstance(value[key], Message):
                    _collect(value[key], found, strip=strip)
                elif marked or _SECRET_KEY.search(str(key)):
                    found |= _searchable(value[key])
                    if strip:
                        value[key] = STRIPPED if isinstance(value[key], str) else type(value[key])()
        elif marked:
            found |= _searchable(value)
            if strip:
                message.ClearField(field.name)
        elif field.message_type is not None:
            for item in value if field.is_repeated else (value,):
                _collect(item, found, strip=strip)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _searchable(value: object) -> set[str]:
    """The texts by which a secret value can be recognized in a line: itself, and strings inside its JSON."""
    if not isinstance(value, str):
        return set()
    texts = {value}
    if value.lstrip().startswith(("{", "[")):
        try:
            texts |= set(_strings(json.loads(value)))
        except (ValueError, RecursionError):
            return texts
    return texts


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


class Scrubber:
    """Blanks the secret values of the calls in progress. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._values: Counter[str] = Counter()

    @contextmanager
    def hold(self, request: Message) -> Iterator[None]:
        """Blank the secrets of ``request`` for the duration of the block."""
        values = [
            form
            for value in secret_values(request)
            if len(value) >= _MINIMUM_SEARCHED
            for form in {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
        ]
        with self._mutex:
            self._values.update(values)
        try:
            yield
        finally:
            with self._mutex:
                self._values.subtract(values)
                self._values += Counter()  # drops the counts that reached zero

    def keep(self, values: Collection[str]) -> None:
        """Blank these, as long as the process runs."""
        with self._mutex:
            self._values.update(dict.fromkeys(values, 1))

    def scrub(self, text: str) -> str:
        """``text`` without the secret values now held, and without what looks like a credential."""
        with self._mutex:
            values = sorted(self._values, key=len, reverse=True)
        for value in values:
            text = text.replace(value, STRIPPED)
        return without_credentials(text)


SCRUBBER = Scrubber()

_request_id: ContextVar[int | None] = ContextVar("request_id", default=None)


@contextmanager
def request_id(number: int) -> Iterator[None]:
    """Within the block, and in threads that were given its context, log lines bear this request id."""
    before = _request_id.set(number)
    try:
        yield
    finally:
        _request_id.reset(before)


class _BearsRequestId(logging.Filter):
    """Notes the request that a line is about, in the thread that logs it."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = _request_id.get()
        return True


# Formatters scrub each part before they write it down: in quotes or escaped, a name at its end ("no token:")
# or after a line break is not seen to be one.


class TextFormatter(logging.Formatter):
    """``time level logger message key=value …``; a traceback is indented, so that no text forges a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(_scrubbed(value))}" for name, value in _fields(record).items())
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = _one_line(SCRUBBER.scrub(record.getMessage()))
        line = f"{when} {record.levelname} {record.name} {message}{fields}"
        if record.exc_info:
            traceback = SCRUBBER.scrub(self.formatException(record.exc_info))
            line = "\n    ".join((line, *map(_one_line, traceback.splitlines())))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the record's fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: _scrubbed(value) for name, value in entry.items()})


def _one_line(text: str) -> str:
    return _CONTROL.sub(lambda one: ascii(one[0])[1:-1], text)


def _scrubbed(value: object) -> object:
    """A figure as it is; anything else as text without secrets."""
    return value if value is None or isinstance(value, (int, float)) else SCRUBBER.scrub(str(value))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    number = getattr(record, "request_id", None)
    about = {} if number is None else {"request_id": number}
    fields = getattr(record, "fields", {})
    return {**about, **fields} if isinstance(fields, dict) else about


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and re.fullmatch(r"[\w./:@+-]+", text, re.ASCII) else json.dumps(text)


def configure(log_format: str, level: str) -> None:
    """Send the process's log to standard error, as ``text`` or ``json``.

    ``level`` is one of :data:`LEVELS`; ``trace`` is ``debug``, and all that the SDKs say.
    """
    SCRUBBER.keep(credentials_in(os.environ))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_BearsRequestId())
    root = logging.DEBUG if level == "trace" else logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=root, handlers=[handler], force=True)
    for name in _SDK_LOGGERS:
        logging.getLogger(name).setLevel(logging.NOTSET if level == "trace" else max(root, logging.WARNING))
