"""Many at once: shared questions, paced changes, and the figures of ``make bench`` in small."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median

import pytest

from providers.aws.batching import Batcher
from providers.aws.pacing import Pacer
from providers.aws.settings import Timings
from providers.deadline import Deadline
from providers.errors import DeadlineError, UnavailableError
from tests.bench.aws import create_in_parallel
from tests.fakes.ec2 import Bucket, Rules
from tests.tools.waiting import eventually

QUICK = Timings(consistency=1.0, first_poll=0.03, last_poll=0.1, gather=0.02, merge=0.01)


def test_creations_at_one_time_take_hardly_a_call_too_many() -> None:
    """The figures of ``tests/bench/aws.py``, with a quarter of the volumes and faster buckets."""
    rules = Rules(
        lag=0.02,
        creating=0.05,
        buckets={"CreateVolume": Bucket(60, 50.0), "DescribeVolumes": Bucket(100, 50.0)},
    )
    timings = Timings(consistency=5.0, first_poll=0.2, last_poll=0.5, gather=0.02)
    figures = create_in_parallel(150, rules, timings)
    # Each learning of a bucket costs some ten calls, whatever comes after: 500 volumes take 1.03 calls each.
    assert figures.create_calls <= 150 + 15
    # Questions come at intervals, however many ask: a machine that takes longer to create asks for longer.
    late = max(0.0, figures.seconds - 2 * figures.allowed_seconds)
    assert figures.describe_calls <= 0.1 * 150 + late / timings.first_poll
    assert late < 60


class _Asked:
    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[list[str]] = []
        self.error = error

    def fetch(self, keys: Sequence[str], deadline: Deadline) -> Mapping[str, str]:
        deadline.check()
        self.calls.append(list(keys))
        if self.error is not None:
            raise self.error
        return {key: key.upper() for key in keys if key != "gone"}


def test_those_who_ask_together_share_calls_of_bounded_size() -> None:
    asked = _Asked()
    began, release = threading.Event(), threading.Event()

    def fetch(keys: Sequence[str], deadline: Deadline) -> Mapping[str, str]:
        began.set()
        assert release.wait(60)
        return asked.fetch(keys, deadline)

    batcher = Batcher(fetch, 5, QUICK, "things")
    keys = [f"key-{number}" for number in range(12)] + ["gone"]
    with ThreadPoolExecutor(1 + 2 * len(keys)) as threads:
        threads.submit(batcher.get, "first", Deadline.after(60))
        assert began.wait(60)
        found = threads.map(lambda key: batcher.get(key, Deadline.after(60)), keys * 2)
        eventually(lambda: sum(map(len, batcher._asked.values())) == 2 * len(keys))
        release.set()
        assert list(found) == [*(key.upper() for key in keys[:-1]), None] * 2
    assert [len(call) for call in asked.calls] == [1, 5, 5, 3]


def test_an_answer_is_never_older_than_its_question() -> None:
    asked = _Asked()
    batcher = Batcher(asked.fetch, 5, QUICK, "things")
    for number in range(1, 4):
        batcher.get("key", Deadline.after(5))
        assert len(asked.calls) == number


def test_slow_answers_are_no_pause_after_which_questions_come_faster() -> None:
    began: list[float] = []

    def fetch(keys: Sequence[str], _: Deadline) -> Mapping[str, str]:
        began.append(time.monotonic())
        if len(began) < 45:
            threads.submit(batcher.get, "key", Deadline.after(60))
            while not batcher._asked:  # or there would be a pause after the answer
                time.sleep(0.001)
        time.sleep(0.05)
        return dict.fromkeys(keys, "found")

    batcher = Batcher(fetch, 5, Timings(first_poll=0.02, last_poll=0.5, gather=0.0), "things")
    with ThreadPoolExecutor(4) as threads:
        batcher.get("key", Deadline.after(60))
        while len(began) < 45:
            time.sleep(0.05)
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert median(gaps[-10:]) > 0.08


def test_what_can_t_be_asked_fails_for_all_who_asked() -> None:
    batcher = Batcher(_Asked(UnavailableError("down")).fetch, 5, QUICK, "things")
    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(batcher.get, key, Deadline.after(5)) for key in ("a", "b", "c")]
    assert all(isinstance(future.exception(), UnavailableError) for future in futures)


def test_who_has_less_time_leaves_first() -> None:
    """Field case B3: a slow answer holds only those who can wait for it."""
    release = threading.Event()

    def fetch(keys: Sequence[str], _: Deadline) -> Mapping[str, str]:
        release.wait(60)
        return dict.fromkeys(keys, "found")

    batcher = Batcher(fetch, 5, QUICK, "things")
    with ThreadPoolExecutor(2) as threads:
        patient = threads.submit(batcher.get, "a", Deadline.after(120))
        begun = time.monotonic()
        with pytest.raises(DeadlineError):
            batcher.get("b", Deadline.after(0.2))
        assert time.monotonic() - begun < 30
        release.set()
        assert patient.result() == "found"


def test_a_pacer_that_was_throttled_says_so_before_the_deadline() -> None:
    pacer = Pacer()
    for _ in range(3):
        pacer.end(pacer.begin(Deadline.after(60)), throttled=True)
    with pytest.raises(UnavailableError):
        for _ in range(3):
            pacer.end(pacer.begin(Deadline.after(0.3)), throttled=True)
