"""The agent's budgets in a real (emulated) VM: ``python -m tests.bench.guest``.

Each figure stands beside its baseline from the same run: the same volumes opened by hand, with ``cryptsetup
open`` and ``mount``, without any check. Budgets are held against the median of what each round says of its
own two ways, which come within seconds of each other: whatever else the machine does slows both.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.bench.table import Row, machine, print_table
from tests.guest.pod import KEY, KEY_ID, MIB, Pod
from tests.lab.caa import serial_of
from tests.lab.hypervisor import Hypervisor
from tests.lab.kbs import Kbs

_ROUNDS = 15
_VOLUMES = 4
ADDED_BUDGET_SECONDS = 0.25
PARALLEL_BUDGET_RATIO = 1.2
IO_BUDGET_RATIO = 0.95
NOTICE_BUDGET_SECONDS = 0.05
_INSIDE = "tests.bench.inside"


def _image(folder: Path, name: str) -> Path:
    image = folder / f"{name}.raw"
    with image.open("xb") as file:
        file.truncate(96 * MIB)
    return image


def measure(folder: Path, hypervisor: Hypervisor) -> list[Row]:
    """All rows of the table."""
    kbs = Kbs(folder / "kbs")
    kbs.put(KEY_ID, KEY)
    pod = Pod(hypervisor.boot("bench", vcpus=2), kbs)
    names = [f"disk-{number}" for number in range(_VOLUMES)]
    first = _image(folder, names[0])
    pod.attach(first, names[0])
    initialize: float = pod.vm.call(f"{_INSIDE}:first_mount", disk_id=names[0], key_id=KEY_ID)
    for name in names[1:]:
        shutil.copyfile(first, folder / f"{name}.raw")
        pod.attach(folder / f"{name}.raw", name)

    one, all_at_once = _opens(pod, names[:1]), _opens(pod, names)
    rates = pod.vm.call(f"{_INSIDE}:disk_rates", disk_id=names[0], key=KEY.hex(), key_id=KEY_ID, timeout=300)
    write, read = (
        statistics.median(rates[f"guarded {way}"]) / statistics.median(rates[f"bare {way}"])
        for way in ("write", "read")
    )
    noticed = _notice(pod, folder)
    return [
        Row("first mount of a blank disk", initialize, "s", None),
        Row("open and mount by hand, median", one.bare * 1e3, "ms", None),
        Row("the agent's mount, median", one.guarded * 1e3, "ms", None, one.bare * 1e3),
        Row("  what the guard adds, median", one.added * 1e3, "ms", ADDED_BUDGET_SECONDS * 1e3),
        Row(f"{_VOLUMES} by hand in parallel, median", all_at_once.bare * 1e3, "ms", None),
        Row(
            f"{_VOLUMES} by the agent, median", all_at_once.guarded * 1e3, "ms", None, all_at_once.bare * 1e3
        ),
        Row("  compared with by hand, median", all_at_once.ratio, "x", PARALLEL_BUDGET_RATIO),
        Row("sequential write, part of bare", write, "x", IO_BUDGET_RATIO, at_least=True),
        Row("sequential read, part of bare", read, "x", IO_BUDGET_RATIO, at_least=True),
        Row("a disk is noticed within, median", noticed * 1e3, "ms", NOTICE_BUDGET_SECONDS * 1e3),
    ]


@dataclass(frozen=True)
class _Opens:
    """Medians over rounds: seconds by hand and by the agent; of each round, their difference and ratio."""

    bare: float
    guarded: float
    added: float
    ratio: float


def _opens(pod: Pod, names: list[str]) -> _Opens:
    """Open these disks by hand and by the agent."""
    found = pod.vm.call(
        f"{_INSIDE}:opens", disk_ids=names, key=KEY.hex(), key_id=KEY_ID, rounds=_ROUNDS, timeout=600
    )
    rounds = list(zip(found["bare"], found["guarded"], strict=True))
    return _Opens(
        bare=statistics.median(found["bare"]),
        guarded=statistics.median(found["guarded"]),
        added=statistics.median(guarded - bare for bare, guarded in rounds),
        ratio=statistics.median(guarded / bare for bare, guarded in rounds),
    )


def _notice(pod: Pod, folder: Path) -> float:
    seconds: list[float] = []
    for number in range(5):
        name = f"late-{number}"
        image = _image(folder, name)
        attach = threading.Timer(0.5, pod.vm.attach, (image, serial_of(name)))
        attach.start()
        seconds.append(pod.vm.call(f"{_INSIDE}:notice", disk_id=name))
        attach.join()
        pod.vm.detach(serial_of(name))
    return statistics.median(seconds)


def main() -> int:
    """Measure, print the table, and return 1 if a budget is exceeded."""
    with tempfile.TemporaryDirectory() as folder, Hypervisor() as hypervisor:
        rows = measure(Path(folder), hypervisor)
    print("Agent, in an emulated VM (QEMU without KVM, 2 processors)")
    print(f"machine   {machine()}")
    print("command   python -m tests.bench.guest")
    print("baseline  cryptsetup open and mount of the same volumes by hand, in the same VM, round by round")
    print_table(rows)
    return 0 if all(row.holds() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
