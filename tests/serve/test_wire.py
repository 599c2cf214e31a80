"""Messages between clients, service and workers are decoded as they were encoded, and anything else is refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from megahour.core.errors import BadRecord, ConfigError
from megahour.serve import wire
from megahour.serve.client import SendWindow, as_sequence
from megahour.serve.metrics import ServiceMeter
from megahour.serve.spec import (
    AcceleratorError,
    ModelSpec,
    SequenceFailedError,
    explain,
    too_long,
)
from megahour.serve.wire import Keyed, Placed, SegmentPlace


def features(frames: int, dim: int = 3, dtype: type = np.float32) -> np.ndarray:
    return np.arange(frames * dim, dtype=dtype).reshape(frames, dim)


# -- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("lengths", [[4], [1, 5, 2]])
def test_a_request_is_read_back_as_views(dtype: type, lengths: list[int]) -> None:
    sent = [Keyed(7 + i, features(frames, dtype=dtype)) for i, frames in enumerate(lengths)]
    batch = wire.from_bytes(wire.to_bytes(wire.encode_request(sent)).to_pybytes())
    for before, after in zip(sent, wire.decode_request(batch), strict=True):
        assert (after.key, after.frames, after.dim, after.dtype) == (before.key, before.frames, 3, dtype)
        np.testing.assert_array_equal(after.features, before.features)
    part = list(wire.decode_request(wire.encode_request(sent).slice(len(sent) - 1)))
    np.testing.assert_array_equal(part[0].features, sent[-1].features)


def test_other_types_than_two_floats_are_refused() -> None:
    with pytest.raises(AcceleratorError, match="float64 are not accepted"):
        wire.encode_request([Keyed(1, features(2, dtype=np.float64))])


def request(values: list[float | None], length: int | None, **columns: pa.Array) -> pa.RecordBatch:
    made = {
        "key": pa.array([5], pa.int64()),
        "length": pa.array([length], pa.int32()),
        "features": pa.array([values], pa.large_list(pa.float32())),
    }
    return pa.record_batch(made | columns)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (request([1.0, 2.0, 3.0], 2), "sequence 5: 3 values do not make 2 frames"),
        (request([1.0, 2.0], 0), "do not make 0 frames"),
        (request([], 1), "0 values"),
        (request([1.0, None], 1), "null values"),
        (request([1.0], None), "null values"),
        (request([1.0], 1, key=pa.array([None], pa.int64())), "null values"),
        (request([1.0], 1, features=pa.array([[1.0]], pa.list_(pa.float32()))), "expected large_list of float16"),
        (request([1.0], 1, features=pa.array([[1.0]], pa.large_list(pa.float64()))), "Arrow type"),
        (request([1.0], 1).rename_columns(["key", "frames", "features"]), "expected key, length, features"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(batch: pa.RecordBatch, message: str) -> None:
    with pytest.raises(AcceleratorError, match=message):
        list(wire.decode_request(batch))


def test_messages_without_a_batch_are_a_wish_or_places() -> None:
    places = [SegmentPlace(1, 0, 10, 64, 2), SegmentPlace(-(1 << 62), 1 << 40, 1, 1, 4)]
    assert wire.decode_message(wire.encode_ask(1 << 30)) == 1 << 30
    assert wire.decode_message(wire.encode_places(places)) == places
    assert wire.decode_message(wire.encode_ask(10**18)) == 10**18
    for bad in (b"", b"ask ", b"ask -1", b"ask 1.5", b"ask " + b"9" * 20, wire.encode_places(places)[:-1], b"tell1234"):
        with pytest.raises(AcceleratorError, match=f"a message of {len(bad)} bytes"):
            wire.decode_message(bad)


def test_work_keeps_its_order_whether_features_travel_or_lie_in_a_segment() -> None:
    work = [Keyed(1, features(2)), Placed(SegmentPlace(2, 8, 5, 3, 2), "/dev/shm/a"), Keyed(3, features(4))]
    header, inline = wire.encode_work(work)
    first, second, third = wire.decode_work(header, bytes(inline))
    assert (first.key, second, third.key, third.frames) == (1, work[1], 3, 4)
    assert (second.key, second.frames, second.dim, second.dtype) == (2, 5, 3, np.float16)
    assert wire.encode_work(work[1:2])[1] == b""
    assert wire.decode_work(*wire.encode_work(work[1:2])) == work[1:2]  # type: ignore[arg-type]


# -- replies ---------------------------------------------------------------------------------------------------------


def test_replies_hold_outputs_of_any_shape_and_failures_their_reason() -> None:
    rows = [
        {"logits": features(frames, 4), "best": np.arange(frames, dtype=np.int16), "pair": np.ones((frames, 2, 3))}
        for frames in (3, 1)
    ]
    batch, layout = wire.encode_reply([10, 11], rows)
    found = dict(wire.decode_reply(batch, layout))
    for key, row in zip((10, 11), rows, strict=True):
        outputs = found[key]
        assert isinstance(outputs, dict)
        assert set(outputs) == set(row)
        for name, values in row.items():
            np.testing.assert_array_equal(outputs[name], values)
            assert outputs[name].dtype == values.dtype
    failed, nothing = wire.encode_failures([12, 13], "boom")
    assert list(wire.decode_reply(failed, nothing)) == [(12, "boom"), (13, "boom")]
    both = wire.merge_replies([batch, batch.slice(0, 1)])
    assert [key for key, _ in wire.decode_reply(both, layout)] == [10, 11, 10]
    assert wire.merge_replies([batch]) is batch


# -- windows ---------------------------------------------------------------------------------------------------------


def test_a_window_is_full_by_frames_but_takes_one_sequence_of_any_length() -> None:
    window = SendWindow(window_frames=10)
    assert not window
    assert window.has_room(50)
    window.depart(Keyed(1, features(6)))
    assert window
    assert window.has_room(4)
    assert not window.has_room(5)
    window.depart(Keyed(2, features(4)))
    with pytest.raises(AcceleratorError, match="key 2 is already in flight"):
        window.depart(Keyed(2, features(4)))
    assert [key for key, _ in window.arrive(1, {})] == [1]
    assert window.has_room(6)
    assert not window.has_room(7)


def test_an_ordered_window_holds_results_back_until_their_turn() -> None:
    window = SendWindow(ordered=True, window_frames=100)
    for key in (5, 3, 9):
        window.depart(Keyed(key, features(1)))
    assert list(window.arrive(9, {})) == []
    assert [key for key, _ in window.arrive(5, {})] == [5]
    assert [key for key, _ in window.arrive(3, {})] == [3, 9]
    assert not window


def test_a_failure_is_reported_or_raised_and_frees_its_slot() -> None:
    told: list[tuple[int, str]] = []
    window = SendWindow(window_frames=10, on_failure=lambda key, reason: told.append((key, reason)))
    window.depart(Keyed(4, features(10)))
    assert list(window.arrive(4, "boom")) == []
    assert told == [(4, "boom")]
    assert not window
    strict = SendWindow(window_frames=10)
    strict.depart(Keyed(4, features(10)))
    with pytest.raises(SequenceFailedError, match="sequence 4: boom") as caught:
        list(strict.arrive(4, "boom"))
    assert (caught.value.key, caught.value.reason) == (4, "boom")


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (4,), (2, 2, 2)])
def test_features_are_frames_by_dimensions(shape: tuple[int, ...]) -> None:
    with pytest.raises(AcceleratorError, match="features of shape"):
        as_sequence(1, np.zeros(shape, np.float32))
    assert as_sequence(1, np.zeros((1, 1), np.float32)).frames == 1


# -- models and counters ---------------------------------------------------------------------------------------------


def test_rows_of_a_batch_follow_its_frames() -> None:
    exact = ModelSpec("m:f", max_batch_frames=1000, exact_rows=16)
    assert [exact.rows(frames) for frames in (10, 62, 63, 100, 1000, 5000)] == [16, 16, 8, 8, 8, 8]
    free = ModelSpec("m:f", max_batch_frames=1000, exact=False)
    assert [free.rows(frames) for frames in (10, 333, 334, 1000, 5000)] == [100, 3, 2, 1, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loader": "m.f"}, "not of the form"),
        ({"loader": "a:b:c"}, "not of the form"),
        ({"max_batch_frames": 0}, "must be at least 1"),
        ({"exact_rows": 12}, "multiple of 8"),
        ({"exact_rows": 0}, "multiple of 8"),
        ({"arguments": {"a": {1}}}, "not JSON values"),
    ],
)
def test_a_model_that_cannot_be_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelSpec(**{"loader": "m:f", **values})  # type: ignore[arg-type]
    assert ModelSpec("m:f", max_batch_frames=1, exact_rows=8).rows(1) == 8


def test_a_loader_is_imported_by_name() -> None:
    assert ModelSpec("builtins:dict", {"a": 1}).load(threads=2, device="cpu") == {  # type: ignore[comparison-overlap]
        **{"a": 1, "threads": 2, "device": "cpu"}
    }
    for loader in ("no_such_module:f", "json:no_such_function"):
        with pytest.raises(ConfigError, match=f"cannot import the loader {loader}"):
            ModelSpec(loader).load(threads=1, device="cpu")


def test_reasons_name_what_happened() -> None:
    assert "11 frames are more than a batch may hold (10)" in too_long(11, 10)
    assert explain(ValueError("bad")) == "ValueError: bad"
    assert explain(BadRecord("nan-audio", record="d.wav")) == "d.wav: nan-audio"


def test_counters_add_up_and_shares_are_of_what_was_computed() -> None:
    meter = ServiceMeter()
    empty = meter.snapshot()
    assert (empty["padding_share"], empty["queue_wait_p95_s"], empty["frames_per_busy_s"]) == (0.0, 0.0, 0.0)
    meter.batch(sequences=3, rows=4, frames=60, computed_frames=100, seconds=2.0, shared=1)
    meter.batch(sequences=1, rows=4, frames=20, computed_frames=100, seconds=2.0)
    meter.failure(2)
    meter.death()
    for frames in (5, 9, 7):
        meter.queued(frames)
    meter.waited([0.0, 1.0])
    meter.waited([2.0])
    found = meter.snapshot()
    assert {name: found[name] for name in ("batches", "sequences", "shared", "frames", "failed", "worker_deaths")} == {
        **{"batches": 2, "sequences": 4, "shared": 1, "frames": 80, "failed": 2, "worker_deaths": 1}
    }
    assert found["padding_share"] == 0.6
    assert (found["rows"], found["computed_frames"], found["busy_s"]) == (8, 200, 4.0)
    assert (found["queue_wait_p50_s"], found["queue_wait_p95_s"]) == (1.0, 1.9)
    assert found["queue_wait_p99_s"] == 1.98
    assert found["queue_frames_peak"] == 9
    assert found["frames_per_busy_s"] == 20.0
    assert found["frames_per_s"] >= 80 / 60  # over its whole life, which is not a minute
    assert json.dumps(found)
