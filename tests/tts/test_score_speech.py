"""`score-speech` finds the reference of every utterance, in whatever shard it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_audio import audio_artifact
from made_utterances import utterance, write_utterances
from made_voices import ran

from megahour.core.errors import ConfigError, NothingKept
from megahour.core.receipts import Counts, Receipt
from megahour.runner.loss_limits import check_kept
from megahour.transcribe.intelligibility import heard
from megahour.tts.params import ScoreSpeechParams, SpeakParams
from megahour.tts.score_shard import MEASURES, places_of, summary
from megahour.tts.score_stage import ScoreSpeech


def test_utterances_of_one_recording_are_found_in_all_shards_of_the_reference(tmp_path: Path) -> None:
    rows = [utterance(f"u{number}", "someone", key=number) for number in range(6)]
    reference = write_utterances(tmp_path / "reference", [rows[:4], rows[4:5], rows[5:]])
    found = places_of([(99, key) for key in range(6)], reference, 0)
    assert {key: shard for key, (shard, _) in found.items()} == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 2}
    assert set(places_of([(2, 98), (3, 97)], reference, 0)) == {2, 3}


def test_the_dots_of_a_russian_letter_are_no_error() -> None:
    text = "нажмите решётку или ещё"
    found = heard("Нажмите решетку, или ещё.", text, "ru")
    assert found == {"heard": "нажмите решетку или ещё", "words": 4, "errors": 0}
    assert heard("нажмите решетки", text, "ru")["errors"] == 3


def test_a_recogniser_that_returns_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text("def hear(samples, rate_hz):\n    'no return'\n")
    speech = audio_artifact(tmp_path / "speech", [[np.ones(8000, np.int16)]])
    params = ScoreSpeechParams(recogniser=f"{tmp_path}/deaf.py:hear")
    with pytest.raises(ConfigError, match="returned NoneType, not a text"):
        ran(ScoreSpeech(), params, {"speech": speech}, tmp_path / "scored")


def test_speech_of_other_texts_than_the_reference_is_an_error(tmp_path: Path) -> None:
    speech = audio_artifact(tmp_path / "speech", [[np.ones(8000, np.int16)]])
    reference = write_utterances(tmp_path / "reference", [[utterance("u", "someone", key=77)]])
    stage, params = ScoreSpeech(), ScoreSpeechParams()
    scored = ran(stage, params, {"speech": speech, "reference": reference}, tmp_path / "scored")
    receipts = list(scored.receipts())
    with pytest.raises(NothingKept, match="kept none of 1 records: no-reference 1") as caught:
        check_kept(stage.name, stage.remedies(params, receipts), receipts, scored)
    assert "whose texts were spoken" in str(caught.value.remedy)


def test_rates_that_no_speech_has() -> None:
    with pytest.raises(ValueError, match="rate_hz is 8; give at least 1,000"):
        SpeakParams(rate_hz=8)


def test_one_utterance_has_no_interval() -> None:
    """All draws of one utterance are the same: an interval of no width would say that chance has no part."""
    row: list[Any] = [10, 1, 5.0] + [None] * (len(MEASURES) - 1)
    other = [10, 4, None] + [None] * (len(MEASURES) - 1)

    def summarised(*rows: list[Any]) -> dict[str, Any]:
        return summary(ScoreSpeechParams(), [Receipt(0, "", Counts(), {}, {"rows": rows}, {})])

    alone = summarised(row)
    assert alone["wer"] == {"mean": 10.0, "interval": [None, None]}
    assert alone["mcd_db"] == {"mean": 5.0, "interval": [None, None]}
    both = summarised(row, other)
    assert both["wer"] == {"mean": 25.0, "interval": [10.0, 40.0]}
    assert both["mcd_db"]["interval"] == [None, None]
