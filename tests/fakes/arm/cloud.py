"""The state behind the fake: resource groups, disks, snapshots, and operations that take time."""

from __future__ import annotations

import copy
import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

from tests.fakes.arm import shapes
from tests.fakes.arm.messages import Answer, Fault, Json, Request, error, react

API_VERSION = "2024-03-02"
FOR_EVER = 10**9
LOCATIONS = ("westeurope", "northeurope")

_RESOURCE = re.compile(
    r"/subscriptions/(?P<subscription>[0-9a-f-]{36})/resourceGroups/(?P<group>[^/]+)"
    r"/providers/Microsoft\.Compute/(?P<kind>disks|snapshots)(?:/(?P<name>[^/]+))?"
)
_OPERATION = re.compile(
    r"/subscriptions/[0-9a-f-]{36}/providers/Microsoft\.Compute/locations/[a-z]+/DiskOperations/(?P<id>[^/]+)"
)
_PERMISSIONS = re.compile(
    r"/subscriptions/(?P<subscription>[0-9a-f-]{36})/resourceGroups/(?P<group>[^/]+)"
    r"/providers/Microsoft\.Authorization/permissions"
)
_PERMISSIONS_API_VERSION = "2022-04-01"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}", re.ASCII)
_ONLINE_GROWTH_BORDER_GIB = 4096


@dataclass
class Resource:
    """A disk or snapshot; ``content`` is what a guest wrote, by block."""

    document: Json
    content: dict[int, int] = field(default_factory=dict)
    copied_at: float = 0.0
    """When the background copy of a snapshot is complete, in monotonic time."""
    seen_at: float = 0.0
    """Since when listings show it."""

    @property
    def properties(self) -> Json:
        """The document's."""
        properties: Json = self.document["properties"]
        return properties


@dataclass
class _Operation:
    looks: int
    """How many looks at it, or at its object, find it in progress."""
    finish: Callable[[], None]
    code: str = ""
    over: bool = False

    def look(self, count: int = 1) -> None:
        self.looks -= count
        if self.looks < 0 and not self.over:
            self.over = True
            self.finish()


Key = tuple[str, str, str]


@dataclass
class ArmCloud:
    """One subscription. Thread-safe."""

    subscription: str = field(default_factory=lambda: str(uuid.uuid4()))
    groups: set[str] = field(default_factory=lambda: {"disks"})
    operation_looks: int = 0
    """How many looks find an operation in progress; at 0 most answers tell at once that it is done."""
    copy_seconds: float = 0.0
    """How long the background copy of a snapshot takes."""
    list_lag: float = 0.0
    """Seconds until a listing shows a new object."""
    page_size: int = 3
    retry_after: str = "0"
    quota_gib: int = 10**9
    failing: list[str] = field(default_factory=list)
    """Codes with which the next accepted creations or changes come to nothing."""
    faults: list[Fault] = field(default_factory=list)
    resources: dict[Key, Resource] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    actions: set[str] = field(default_factory=set)
    """The permissions that the requests needed."""
    roles: list[Json] | None = field(default_factory=list)
    """What the caller is granted, by its roles; None: it may not ask."""
    violations: list[str] = field(default_factory=list)
    """Requests that the driver must never send."""
    _operations: dict[str, _Operation] = field(default_factory=dict)
    _busy: dict[Key, _Operation] = field(default_factory=dict)
    """The last operation of each object."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def handle(self, request: Request) -> Answer:
        """The answer to a request.

        Raises:
            Dropped: the connection breaks instead.
        """
        with self._lock:
            self.requests.append(request)
            fault = next((one for one in self.faults if one.times and one.matches(request)), None)
            if fault is not None:
                fault.times -= 1
                if fault.before is not None:
                    return react(fault.before)
            answer = self._handle(request)
            if fault is not None and fault.after is not None:
                return react(fault.after)
            return answer

    def disk(self, name: str, group: str = "disks") -> Resource:
        """The disk of that name."""
        with self._lock:
            self._settle()
            return self.resources["disks", group.lower(), name.lower()]

    def add(self, kind: str, group: str, name: str, body: Json) -> Json:
        """An object that somebody else made; its document."""
        with self._lock:
            key = (kind, group.lower(), name.lower())
            self.resources[key] = self._new(key, group, name, body, None)
            self.resources[key].properties["provisioningState"] = "Succeeded"
            return self.resources[key].document

    def objects(self) -> list[str]:
        """A line for each object, sorted."""
        with self._lock:
            self._settle()
            return sorted("/".join(key) for key in self.resources)

    def attach(self, name: str, machine: str, group: str = "disks") -> None:
        """A virtual machine has the disk from now on; an empty name: none has."""
        disk = self.disk(name, group)
        prefix = f"/subscriptions/{self.subscription}/resourceGroups/vms/providers/Microsoft.Compute"
        disk.document.pop("managedBy", None)
        if machine:
            disk.document["managedBy"] = f"{prefix}/virtualMachines/{machine}"
        disk.properties["diskState"] = "Attached" if machine else "Unattached"

    def _settle(self) -> None:
        """Time goes by: every operation ends."""
        for operation in self._operations.values():
            if operation.looks < FOR_EVER // 2:
                operation.look(FOR_EVER)

    def _handle(self, request: Request) -> Answer:
        asked = _PERMISSIONS.fullmatch(request.path)
        if asked is not None:
            return self._permissions(asked["group"], request)
        if request.query.get("api-version") != API_VERSION:
            return self._violation(f"api-version of {request.path}", "InvalidApiVersionParameter")
        operation = _OPERATION.fullmatch(request.path)
        if operation is not None:
            return self._operation(operation["id"], request)
        found = _RESOURCE.fullmatch(request.path)
        if found is None or found["subscription"] != self.subscription:
            return error(404, "SubscriptionNotFound")
        verb = {"GET": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}[request.method]
        self.actions.add(f"Microsoft.Compute/{found['kind']}/{verb}")
        if found["group"].lower() not in {group.lower() for group in self.groups}:
            return error(404, "ResourceGroupNotFound")
        if found["name"] is None:
            return self._list(found["kind"], found["group"], request)
        if not _NAME.fullmatch(found["name"]):
            return self._violation(f"name {found['name']!r}", "InvalidResourceName")
        key = (found["kind"], found["group"].lower(), found["name"].lower())
        if key in self._busy:
            self._busy[key].look()
        if request.method == "GET":
            held = self.resources.get(key)
            return error(404, "ResourceNotFound") if held is None else Answer(200, self._shown(held))
        return self._change(key, found["group"], found["name"], request)

    def _permissions(self, group: str, request: Request) -> Answer:
        if request.query.get("api-version") != _PERMISSIONS_API_VERSION or request.method != "GET":
            return self._violation(f"{request.method} of permissions", "InvalidApiVersionParameter")
        if group.lower() not in {one.lower() for one in self.groups}:
            return error(404, "ResourceGroupNotFound")
        if self.roles is None:
            return error(403, "AuthorizationFailed")
        date = formatdate(usegmt=True)
        return Answer(200, {"value": copy.deepcopy(self.roles)}, {"Date": date})

    def _shown(self, resource: Resource, *, listed: bool = False) -> Json:
        document = copy.deepcopy(resource.document)
        if document["type"].endswith("snapshots") and resource.copied_at:
            left = max(0.0, resource.copied_at - time.monotonic())
            share = 1 - left / self.copy_seconds if self.copy_seconds else 1.0
            document["properties"]["completionPercent"] = round(100 * share, 1)
        if listed:  # as Azure does at times
            document["id"] = document["id"].replace("/resourceGroups/disks/", "/resourceGroups/DISKS/")
        return document

    def _list(self, kind: str, group: str, request: Request) -> Answer:
        if request.method != "GET":
            return self._violation(f"{request.method} of a collection", "MethodNotAllowed")
        start = int(request.query.get("$skiptoken", "0"))
        for key, operation in self._busy.items():
            if key[:2] == (kind, group.lower()) and not start:
                operation.look()
        found = [
            self._shown(resource, listed=True)
            for key, resource in sorted(self.resources.items())
            if key[:2] == (kind, group.lower()) and resource.seen_at <= time.monotonic()
        ]
        body: Json = {"value": found[start : start + self.page_size]}
        if start + self.page_size < len(found):
            body["nextLink"] = (
                f"https://{request.headers['host']}{request.path}"
                f"?api-version={API_VERSION}&$skiptoken={start + self.page_size}"
            )
        return Answer(200, body)

    def _change(self, key: Key, group: str, name: str, request: Request) -> Answer:
        held = self.resources.get(key)
        if held is not None and held.properties["provisioningState"] not in ("Succeeded", "Failed"):
            return error(409, "Conflict", "another operation is in progress")
        if request.method == "DELETE":
            return self._delete(key, held, request)
        shape = (
            shapes.DISK_UPDATE
            if request.method == "PATCH"
            else shapes.DISK
            if key[0] == "disks"
            else shapes.SNAPSHOT
        )
        if request.headers.get("content-type") != "application/json":
            return self._violation("the content type of a body", "UnsupportedMediaType")
        try:
            shapes.check(request.body, shape, whole=request.method == "PUT")
        except shapes.Wrong as wrong:
            return self._violation(str(wrong), "InvalidRequestContent")
        if request.method == "PATCH" and key[0] == "snapshots":
            return self._violation("PATCH of a snapshot", "MethodNotAllowed")
        if request.method == "PATCH":
            return error(404, "ResourceNotFound") if held is None else self._update(key, held, request)
        return self._put(key, held, group, name, request)

    def _put(self, key: Key, held: Resource | None, group: str, name: str, request: Request) -> Answer:
        body = _copied(request)
        properties = body["properties"]
        creation = properties["creationData"]
        source = None
        if body["location"] not in LOCATIONS:
            return error(400, "LocationNotAvailableForResourceType")
        if (creation["createOption"] == "Copy") != ("sourceResourceId" in creation):
            return self._violation("creationData", "InvalidParameter")
        if held is not None:
            return self._put_again(key, held, body, request)
        if creation["createOption"] == "Copy":
            source_key = _key(creation["sourceResourceId"])
            self.actions.add(f"Microsoft.Compute/{source_key[0]}/beginGetAccess/action")
            source = self.resources.get(source_key)
            if source is None:
                return error(404, "ResourceNotFound")
            if source.document["location"] != body["location"]:
                return error(400, "InvalidParameter")
            if source.properties["provisioningState"] != "Succeeded" or source.copied_at > time.monotonic():
                return error(409, "OperationNotAllowed")
            properties.setdefault("diskSizeGB", source.properties["diskSizeGB"])
            if properties["diskSizeGB"] < source.properties["diskSizeGB"]:
                return self._violation("a copy smaller than its source", "InvalidParameter")
        elif key[0] == "snapshots" or "diskSizeGB" not in properties:
            return self._violation("a blank snapshot, or a blank disk without a size", "InvalidParameter")
        refusal = self._refused(key[0], body)
        if refusal is not None:
            return refusal
        resource = self._new(key, group, name, body, source)
        self.resources[key] = resource
        return self._accept(key, "Creating", lambda: None, request)

    def _refused(self, kind: str, body: Json) -> Answer | None:
        properties = body["properties"]
        if properties.get("networkAccessPolicy") != "DenyAll" or (
            properties.get("publicNetworkAccess") != "Disabled"
        ):
            return self._violation("an object that is open to the network", "RequestDisallowedByPolicy")
        if kind == "snapshots":
            return None if properties.get("incremental") is True else self._violation("a full snapshot", "X")
        sku = body.get("sku", {}).get("name", "Standard_LRS")
        tuned = {"diskIOPSReadWrite", "diskMBpsReadWrite"} & set(properties)
        if tuned and sku not in shapes.TUNABLE:
            return self._violation(f"{sku} with {tuned}", "InvalidParameter")
        if sku in shapes.TUNABLE and "zones" not in body:
            return error(400, "InvalidParameter", "needs a zone")
        if sku.endswith("_ZRS") and "zones" in body:
            return self._violation("a ZRS disk in a zone", "InvalidParameter")
        if sku not in shapes.TUNABLE and properties["diskSizeGB"] > 32767:
            return self._violation("a disk that is too large", "InvalidParameter")
        if "encryption" in properties:
            self.actions.add("Microsoft.Compute/diskEncryptionSets/read")
        held = sum(one.properties["diskSizeGB"] for key, one in self.resources.items() if key[0] == "disks")
        if held + properties["diskSizeGB"] > self.quota_gib:
            return error(403, "QuotaExceeded")
        return None

    def _new(self, key: Key, group: str, name: str, body: Json, source: Resource | None) -> Resource:
        kind = key[0]
        now = datetime.now(UTC)
        document: Json = {
            "name": name,
            "id": f"/subscriptions/{self.subscription}/resourceGroups/{group}"
            f"/providers/Microsoft.Compute/{kind}/{name}",
            "type": f"Microsoft.Compute/{kind}",
            **body,
        }
        properties = document["properties"]
        properties["timeCreated"] = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06}7+00:00"
        properties["uniqueId"] = str(uuid.uuid4())
        properties["diskSizeBytes"] = properties["diskSizeGB"] << 30
        if kind == "disks":
            properties["diskState"] = "Unattached"
            properties.setdefault("encryption", {"type": "EncryptionAtRestWithPlatformKey"})
            if "zones" not in document and document["sku"]["name"] in shapes.TUNABLE:
                properties.setdefault("diskIOPSReadWrite", 3000)
        return Resource(
            document,
            content=dict(source.content) if source is not None else {},
            copied_at=time.monotonic() + self.copy_seconds if kind == "snapshots" else 0.0,
            seen_at=time.monotonic() + self.list_lag,
        )

    def _put_again(self, key: Key, held: Resource, body: Json, request: Request) -> Answer:
        document, properties = held.document, body["properties"]
        creation = properties["creationData"]
        if (
            body["location"] != document["location"]
            or body.get("zones") != document.get("zones")
            or creation != held.properties["creationData"]
        ):
            return error(409, "PropertyChangeNotAllowed")
        size = int(properties.get("diskSizeGB") or held.properties["diskSizeGB"])
        if size < held.properties["diskSizeGB"]:
            return error(409, "OperationNotAllowed", "a disk can't be made smaller")
        closed = (properties.get("networkAccessPolicy"), properties.get("publicNetworkAccess"))
        if closed != ("DenyAll", "Disabled"):
            return self._violation("a disk that a PUT opens to the network", "RequestDisallowedByPolicy")

        def finish() -> None:
            document["tags"] = body.get("tags", {})
            document["sku"] = body.get("sku", document["sku"])
            held.properties["diskSizeGB"] = size
            held.properties["diskSizeBytes"] = size << 30

        return self._accept(key, "Updating", finish, request)

    def _update(self, key: Key, held: Resource, request: Request) -> Answer:
        body = _copied(request)
        properties: Json = body.get("properties", {})
        size = int(properties.get("diskSizeGB") or held.properties["diskSizeGB"])
        attached = "managedBy" in held.document
        if size < held.properties["diskSizeGB"]:
            return error(409, "OperationNotAllowed", "a disk can't be made smaller")
        border = _ONLINE_GROWTH_BORDER_GIB
        if attached and held.properties["diskSizeGB"] <= border < size:
            return error(409, "OperationNotAllowed", "is attached to a running VM")
        kind: Json = body.get("sku") or held.document["sku"]
        sku = kind["name"]
        if attached and sku != held.document["sku"]["name"]:
            return error(409, "OperationNotAllowed", "is attached to a running VM")
        tuned = {"diskIOPSReadWrite", "diskMBpsReadWrite"} & set(properties)
        if tuned and sku not in shapes.TUNABLE:
            return self._violation(f"{sku} with {tuned}", "InvalidParameter")

        def finish() -> None:
            if "tags" in body:
                held.document["tags"] = body["tags"]
            held.document["sku"] = {"name": sku}
            held.properties.update(properties)
            held.properties["diskSizeBytes"] = size << 30

        return self._accept(key, "Updating", finish, request)

    def _delete(self, key: Key, held: Resource | None, request: Request) -> Answer:
        if held is None:
            return Answer(204)
        if "managedBy" in held.document:
            return error(409, "OperationNotAllowed", "is attached to VM")
        return self._accept(key, "Deleting", lambda: self.resources.pop(key), request)

    def _accept(self, key: Key, state: str, finish: Callable[[], object], request: Request) -> Answer:
        """Begin an operation."""
        resource = self.resources[key]
        code = self.failing.pop(0) if self.failing and state != "Deleting" else ""
        resource.properties["provisioningState"] = state

        def end() -> None:
            resource.properties["provisioningState"] = "Failed" if code else "Succeeded"
            if not code:
                finish()

        operation = _Operation(self.operation_looks, end, code)
        if self.operation_looks == 0 and not code and request.method != "DELETE":
            operation.look()
            return Answer(200, self._shown(resource))
        self._busy[key] = operation
        name = str(uuid.uuid4())
        self._operations[name] = operation
        url = (
            f"https://{request.headers['host']}/subscriptions/{self.subscription}/providers/Microsoft.Compute"
            f"/locations/{resource.document['location']}/DiskOperations/{name}?api-version={API_VERSION}"
        )
        headers = {"Location": f"{url}&monitor=true"}
        if len(self._operations) % 2:  # both forms exist
            headers["Azure-AsyncOperation"] = url
        if self.retry_after:
            headers["Retry-After"] = self.retry_after
        return Answer(202, self._shown(resource) if request.method != "DELETE" else None, headers)

    def _operation(self, name: str, request: Request) -> Answer:
        self.actions.add("Microsoft.Compute/locations/DiskOperations/read")
        operation = self._operations.get(name)
        if operation is None:
            return error(404, "NotFound")
        operation.look()
        headers = {"Retry-After": self.retry_after} if self.retry_after and not operation.over else {}
        if request.query.get("monitor") == "true" and not operation.code:
            return Answer(200, {}) if operation.over else Answer(202, None, headers)
        status = "InProgress" if not operation.over else "Failed" if operation.code else "Succeeded"
        body: Json = {"startTime": datetime.now(UTC).isoformat(), "status": status, "name": name}
        if status == "Failed":
            body["error"] = {"code": operation.code, "message": "(a fake)"}
        return Answer(200 if operation.over else 202, body, headers)

    def _violation(self, what: str, code: str) -> Answer:
        self.violations.append(what)
        return error(400, code, what)


def _copied(request: Request) -> Json:
    body: Json = copy.deepcopy(request.body)
    return body


def _key(resource_id: str) -> Key:
    found: Any = _RESOURCE.fullmatch(resource_id)
    return found["kind"], found["group"].lower(), found["name"].lower()
