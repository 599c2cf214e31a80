"""A recording is cut where it is quiet, whatever blocks it comes in, and no row is lost."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.features.frontend import FrontEnd
from megahour.features.normalise import CausalMean, without_mean
from megahour.transcribe.pieces import Cutter, EndRules, SpeechPiece

CONFIG = {
    "outputs": 4, "stack": 3, "stats": {"mean": [0.0] * 8, "inv_std": [1.0] * 8},
    "audio": {"input": "stacked", "rate_hz": 8000, "low_hz": 20.0, "high_hz": 0.0, "prior": 10.0},
}  # fmt: skip
WAVES = {
    "outputs": 4,
    "audio": {"input": "waveform", "rate_hz": 8000, "frame_shift_samples": 160, "mels": 80, "low_hz": 20.0,
              "high_hz": 0.0, "scale": "unit", "normalise": False},
}  # fmt: skip


def talk(seconds: float, pauses: dict[float, float]) -> NDArray[np.float32]:
    """Noise, with near silence from each time of `pauses` on for so many seconds, and before and after it 1 s."""
    rng = np.random.default_rng(0)
    samples = rng.normal(0, 3000, round(seconds * 8000)).astype(np.float32)
    for start, length in {0.0: 1.0, **pauses, seconds - 1: 1.0}.items():
        samples[round(start * 8000) : round((start + length) * 8000)] /= 1000
    return samples


def cut(
    config: dict[str, object], samples: NDArray[np.float32], block: int, longest_s: float = 20.0, pause_s: float = 0.7
) -> list[SpeechPiece]:
    cutter = Cutter(FrontEnd.of(config, tokens=False), EndRules(pause_s, longest_s))
    blocks = (samples[start : start + block] for start in range(0, len(samples), block))
    pieces = [piece for rows in cutter.rows(blocks) for piece in cutter.add(rows)]
    rest = cutter.rest()
    return pieces + ([rest] if rest is not None else [])


def spans(config: dict[str, object], pieces: list[SpeechPiece]) -> list[tuple[float, float]]:
    front = FrontEnd.of(config, tokens=False)
    row_s = front.shift_s if front.kind == "waveform" else 0.01
    return [(piece.start_s, piece.start_s + len(piece.rows) * row_s) for piece in pieces]


@pytest.mark.parametrize("config", [CONFIG, WAVES])
@pytest.mark.parametrize("block", [800, 8123, 10**6])
def test_pieces_do_not_depend_on_blocks(config: dict[str, object], block: int) -> None:
    samples = talk(9.0, {2.5: 1.0, 5.0: 0.3})
    pieces, whole = cut(config, samples, block, 2.5), cut(config, samples, len(samples), 2.5)
    assert [piece.start_s for piece in pieces] == [piece.start_s for piece in whole]
    for one, other in zip(pieces, whole, strict=True):  # at 8 kHz the sums of a block depend on its length
        np.testing.assert_allclose(one.rows, other.rows, atol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, WAVES])
def test_a_quiet_room_beside_digital_silence_is_no_speech(config: dict[str, object]) -> None:
    """An editor muted the first two seconds: what follows was 25 nats louder, all of it speech."""
    samples = np.rint(talk(9.0, {4.0: 2.0}))
    samples[:16_000] = 0
    found = [(round(start, 1), round(end, 1)) for start, end in spans(config, cut(config, samples, 8000))]
    assert found == [(1.8, 4.2), (5.8, 8.2)]


def test_a_look_at_the_first_frames_does_not_set_their_level() -> None:
    """A dip near 0.5 s, after a stream's first update: with the floor of the frames before it they are no speech."""
    samples = np.random.default_rng(1).normal(0, 3000, 16_000).astype(np.float32)
    samples[3840:4120] /= 10_000
    cutter = Cutter(FrontEnd.of(CONFIG, tokens=False))
    for rows in cutter.rows(samples[start : start + 800] for start in range(0, len(samples), 800)):
        assert not list(cutter.add(rows))
        assert cutter.held is None or cutter.held.start_s == 0.0
    assert cutter.held is not None


@pytest.mark.parametrize("config", [CONFIG, WAVES])
def test_long_pauses_are_left_out_and_short_ones_kept(config: dict[str, object]) -> None:
    found = spans(config, cut(config, talk(9.0, {2.5: 1.0, 5.0: 0.3}), 4000))
    assert np.allclose(found, [(0.8, 2.7), (3.3, 8.2)], atol=0.06), found


def test_pieces_are_where_they_are_at_a_rate_of_no_whole_10_ms() -> None:
    config = {**CONFIG, "audio": {**CONFIG["audio"], "rate_hz": 11_025}}  # frames of 110 samples, not 110.25
    samples = np.tile(talk(9.0, {}), 30)  # at 8 kHz, a second of quiet at both ends
    starts = [piece.start_s for piece in cut(config, samples, 40_000)]
    np.testing.assert_allclose(starts, (np.arange(30) * 72_000 + 8000) / 11_025 - 0.2, atol=0.06)


def test_what_a_pause_is_can_be_chosen() -> None:
    samples = talk(9.0, {2.5: 1.0, 5.0: 0.6})
    found = [spans(CONFIG, cut(CONFIG, samples, 4000, pause_s=pause_s)) for pause_s in (0.5, 0.7, 1.2)]
    assert np.allclose(found[0], [(0.8, 2.7), (3.3, 5.2), (5.4, 8.2)], atol=0.06), found[0]
    assert [len(spans) for spans in found] == [3, 2, 1]


@pytest.mark.parametrize("config", [CONFIG, WAVES])
def test_speech_without_a_pause_is_cut_where_it_is_quietest(config: dict[str, object]) -> None:
    found = spans(config, cut(config, talk(9.0, {2.5: 0.3, 4.2: 0.3, 6.1: 0.3}), 4000, longest_s=2.5))
    starts = [start for start, _ in found]
    assert np.allclose(starts[1:4], [2.65, 4.35, 6.25], atol=0.15), starts
    assert all(end - start <= 2.5 + 0.05 for start, end in found)
    for (_, end), start in zip(found[:3], starts[1:], strict=False):
        assert end == pytest.approx(start, abs=0.04)  # nothing is lost but what fills no output frame


def test_silence_and_clicks_are_no_pieces() -> None:
    assert not cut(CONFIG, talk(6.0, {})[8000:40000] / 1000, 4000)
    click = talk(6.0, {})[8000:40000] / 1000
    click[16000:16200] *= 1000
    assert not cut(CONFIG, click, 4000)
    assert not cut(CONFIG, np.zeros(40_000, np.float32), 4000)
    assert not cut(CONFIG, np.zeros(1, np.float32), 4000), "less than a frame"


def test_the_mean_is_over_speech_alone() -> None:
    """As over utterances: whatever pauses lie between, the same speech gives the same rows."""
    speech = talk(4.0, {})[8000:24000]
    silence = talk(6.0, {})[8000:40000] / 1000
    short = cut(CONFIG, np.concatenate([silence[:16000], speech, silence[:8000], speech, silence[:8000]]), 4000)
    long = cut(CONFIG, np.concatenate([silence[:16000], speech, silence[:28000], speech, silence[:8000]]), 4000)
    assert len(short) == len(long) == 2
    for one, other in zip(short, long, strict=True):
        frames = min(len(one.rows), len(other.rows))
        np.testing.assert_allclose(one.rows[30 : frames - 30], other.rows[30 : frames - 30], atol=0.3)


def test_each_piece_has_its_own_mean_if_the_model_is_of_such() -> None:
    samples = talk(9.0, {2.5: 1.0})
    samples[:28_000] *= 10  # the first piece is louder
    config = {**CONFIG, "audio": {**CONFIG["audio"], "mean": "utterance"}}  # type: ignore[dict-item]
    pieces = cut(config, samples, 4000)
    assert len(pieces) == 2
    for piece in pieces:
        np.testing.assert_allclose(piece.rows.mean(axis=0), 0, atol=1e-4)
    ranged = cut({**CONFIG, "audio": {**config["audio"], "range_db": 12.0}}, samples, 4000)
    for piece, whole in zip(ranged, pieces, strict=True):
        np.testing.assert_allclose(piece.rows, without_mean(whole.rows, None, 12.0), atol=1e-4)
    with pytest.raises(ConfigError, match="has an unknown mean 'median'"):
        FrontEnd.of({**CONFIG, "audio": {**CONFIG["audio"], "mean": "median"}}, tokens=False)  # type: ignore[dict-item]


def test_memory_does_not_grow_with_the_recording() -> None:
    cutter = Cutter(FrontEnd.of(CONFIG, tokens=False), EndRules(longest=5.0))
    samples, largest = talk(20.0, {6.0: 2.0, 12.0: 2.0}), 0
    for _ in range(3):
        for rows in cutter.rows(samples[start : start + 8000] for start in range(0, len(samples), 8000)):
            list(cutter.add(rows))
            largest = max(largest, 0 if cutter.held is None else len(cutter.held.rows))
    assert largest <= 600


def test_the_first_piece_begins_with_its_own_mean_where_it_is_settled() -> None:
    """As a speaker's mean is after the same speech; later pieces go on from there."""
    samples = talk(9.0, {2.5: 1.0})
    front = FrontEnd.of(CONFIG, tokens=False)
    mels = np.concatenate(list(front.rows_of(iter([samples]), [], mean=False)))
    cutter = Cutter(front, settled=True)
    first, second = (piece for rows in cutter.rows(iter([samples])) for piece in cutter.add(rows))
    parts = [mels[round(100 * piece.start_s) :][: len(piece.rows)] for piece in (first, second)]
    mean = CausalMean.after(len(parts[0]), parts[0].mean(axis=0, dtype=np.float64))
    for piece, part in zip((first, second), parts, strict=True):
        np.testing.assert_allclose(piece.rows, mean.apply(part), atol=1e-5)


def test_a_piece_that_is_held_begins_with_its_own_mean_too() -> None:
    """A recording that is one piece to its end."""
    front = FrontEnd.of(CONFIG, tokens=False)
    cutter = Cutter(front, settled=True)
    assert not [piece for rows in cutter.rows(iter([talk(9.0, {})[:32_000]])) for piece in cutter.add(rows)]
    assert cutter.held is not None
    assert abs(float(cutter.held.rows.mean())) < 1  # with the prior it is 5.8


@pytest.mark.parametrize(
    "rules", [{"pause": 0.3}, {"pause": -1.0}, {"longest": 0.0}, {"wordless": -0.1}, {"pause": np.nan}]
)
def test_rules_that_no_piece_can_keep_are_refused(rules: dict[str, float]) -> None:
    """With a pause shorter than the margins, pieces were empty, and began before the recording."""
    with pytest.raises(ConfigError, match=r"pause above 0\.4 s, longest above 0, wordless from 0"):
        EndRules(**rules)
