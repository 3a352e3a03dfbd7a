"""The resident server in the guest: runs programs, and Python functions in forked children.

A forked child spares each call the start of an interpreter, which takes a second under emulation. Standard
streams are memory files, so a daemon that a job leaves behind and that keeps them open does not hold the
job's answer back. Imports are few, as in :mod:`tests.lab.frames`.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import time
from io import FileIO

from tests.lab.frames import pack, read_frame, unpack, write_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.lab.frames import Frame

CONTROL_PORT = "control"

_SIGKILL = 9
_PORTS = "/sys/class/virtio-ports"


class _Job:
    """A process that a request started."""

    def __init__(self, request: Frame, pid: int, stdout: int, stderr: int, result: int | None) -> None:
        self.request: int = request["id"]
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.stdout = stdout
        self.stderr = stderr
        self.result = result
        self.deadline: float = time.monotonic() + request["timeout"]
        self.answered = False


def port_device(name: str) -> str:
    """The device of a virtio-serial port; there is no udev that would make ``/dev/virtio-ports``.

    Raises:
        FileNotFoundError: there is no such port.
    """
    with os.scandir(_PORTS) as ports:
        for port in ports:
            with FileIO(f"{port.path}/name") as file:
                if file.read().decode().strip() == name:
                    return f"/dev/{port.name}"
    raise FileNotFoundError(f"no virtio-serial port called {name}")


def _memory_file(content: bytes = b"") -> int:
    descriptor = os.memfd_create("stream")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _content(descriptor: int) -> bytes:
    # pread: the offset is shared with whoever still writes there.
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _traceback() -> str:
    import traceback

    return traceback.format_exc()


def _start_program(request: Frame, stdin: int, stdout: int, stderr: int) -> int:
    argv = request["argv"]
    streams = [(os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate((stdin, stdout, stderr))]
    environment = {**os.environ, **request["environment"]}
    return os.posix_spawnp(argv[0], argv, environment, file_actions=streams, setsid=True)


def _start_function(request: Frame, stdin: int, stdout: int, stderr: int, result: int) -> int:
    if "site" not in sys.modules:
        # The server runs without site-packages until here, which makes the guest ready half a second sooner.
        import site

        site.main()
    module_name, _, function_name = request["function"].partition(":")
    # Imported here, not in the child: the next call finds it loaded.
    function = getattr(importlib.import_module(module_name), function_name)
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        for number, source in enumerate((stdin, stdout, stderr)):
            os.dup2(source, number)
        answer = {"value": function(**request["arguments"])}
        os.write(result, json.dumps(answer).encode())
        status = 0
    except BaseException:
        os.ftruncate(result, 0)
        os.pwrite(result, json.dumps({"traceback": _traceback()}).encode(), 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _Server:
    def __init__(self, channel: FileIO) -> None:
        self._channel = channel
        self._jobs: list[_Job] = []

    def serve(self) -> None:
        """Answer requests, several at a time, until the channel breaks."""
        while True:
            poll = select.poll()
            poll.register(self._channel, select.POLLIN)
            for job in self._jobs:
                poll.register(job.pidfd, select.POLLIN)
            waiting = [job.deadline - time.monotonic() for job in self._jobs if not job.answered]
            timeout = max(0.0, min(waiting)) * 1000 + 1 if waiting else None
            ready = {descriptor for descriptor, _ in poll.poll(timeout)}
            for job in list(self._jobs):
                if job.pidfd in ready:
                    self._reap(job)
                elif not job.answered and time.monotonic() >= job.deadline:
                    os.killpg(job.pid, _SIGKILL)
                    # Answered at once: a process in an uninterruptible wait would hold it back.
                    self._answer(job, {"timed_out": True})
            if self._channel.fileno() in ready:
                self._take(read_frame(self._channel))

    def _take(self, request: Frame) -> None:
        stdin = _memory_file(unpack(request.get("stdin", "")))
        stdout, stderr = _memory_file(), _memory_file()
        result = None
        try:
            if "function" in request:
                result = _memory_file()
                pid = _start_function(request, stdin, stdout, stderr, result)
            else:
                pid = _start_program(request, stdin, stdout, stderr)
        except BaseException:
            for descriptor in (stdout, stderr, result):
                if descriptor is not None:
                    os.close(descriptor)
            failure = {"id": request["id"], "traceback": _traceback()}
            write_frame(self._channel, failure)
            return
        finally:
            os.close(stdin)
        self._jobs.append(_Job(request, pid, stdout, stderr, result))

    def _reap(self, job: _Job) -> None:
        _, status = os.waitpid(job.pid, 0)
        if not job.answered:
            outcome: Frame = {"returncode": os.waitstatus_to_exitcode(status)}
            if job.result is not None:
                outcome |= json.loads(_content(job.result) or b"{}")
            self._answer(job, outcome)
        self._jobs.remove(job)
        for descriptor in (job.pidfd, job.stdout, job.stderr, job.result):
            if descriptor is not None:
                os.close(descriptor)

    def _answer(self, job: _Job, outcome: Frame) -> None:
        job.answered = True
        streams = {"stdout": pack(_content(job.stdout)), "stderr": pack(_content(job.stderr))}
        write_frame(self._channel, {"id": job.request, **streams, **outcome})


def main() -> None:
    """Serve the control port."""
    with FileIO(port_device(CONTROL_PORT), "r+") as channel:
        _Server(channel).serve()


if __name__ == "__main__":
    main()
