"""Speech of two phones with known times, and the output of stage `tts-data` for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from made_artifacts import write_artifact
from made_audio import _finished, audio_artifact, selection_artifact
from numpy.typing import NDArray

from megahour.core.schemas import SENONE_ALIGNMENTS
from megahour.core.stage import Context, Stage
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.tts.data_stage import TtsData
from megahour.tts.params import TtsDataParams
from megahour.units.hmm import Units

RATE_HZ = 8_000
HERTZ = {"a": (150, 700, 1200), "b": (150, 350, 2400), "SIL": ()}
LEXICON = "ab  a b\nba  b a\na  a\n"
UNITS = Units(("SIL", "a", "b"), ("SIL", "a", "b"), 0, (0.4, 0.3, 0.3), {"a": {"leaf": 1}, "b": {"leaf": 2}})
TEXTS = ["ab ba", "ba", "a ab", "ba a ba", "ab", "ba ab a", "a ba", "ab ab"]
TINY: dict[str, Any] = {
    **{"kind": "voice", "criterion": "speech", "sets": ["labelled"], "layers": 1, "hidden": 8, "stack": 1},
    **{"criterion_options": {"decoder": "fast", "decoder_layers": 1}, "offsets": [0], "epochs": 0, "whole_epochs": 10},
    **{"batch_frames": 200, "held_out": 0.2, "held_out_by": "utterance", "threads": 1, "checkpoint_s": 0},
}
"""A training of a second."""


def spoken(text: str, seed: int, tract: float = 1.0) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Samples, and the senone of each frame of 10 ms, of a text with silence around it. tract: raises the formants."""
    rng = np.random.default_rng(seed)
    phones = ["SIL", *(phone for word in text.split() for phone in word), "SIL"]
    frames = [int(rng.integers(6, 14)) for _ in phones]
    parts = []
    for phone, n in zip(phones, frames, strict=True):
        time_s = np.arange(n * RATE_HZ // 100) / RATE_HZ
        tones = [hz if hz < 200 else hz * tract for hz in HERTZ[phone]]
        parts.append(sum((np.sin(2 * np.pi * hz * time_s) for hz in tones), np.zeros(len(time_s))))
    samples = 3000 * np.concatenate(parts) + rng.normal(0, 20, sum(map(len, parts)))
    senones = np.repeat([UNITS.senones.index(phone) for phone in phones], frames)
    return samples.astype(np.int16), senones[:-2].astype(np.int16)  # whole windows only


def corpus(
    folder: Path,
    speakers: int = 1,
    texts: Sequence[str] = TEXTS,
    said: Sequence[str] = (),
    heard: Mapping[int, NDArray[np.int16]] | None = None,
) -> dict[str, Artifact]:
    """Inputs of `tts-data`, a shard per speaker.

    said: texts spoken in place of the transcripts, phone for phone. heard: sounds in place of these utterances'.
    """
    made = [spoken(text, seed) for seed, text in enumerate(texts)]
    sounds = [spoken(text, seed)[0] for seed, text in enumerate(said or texts)]
    sounds = [(heard or {}).get(n, sound) for n, sound in enumerate(sounds)]
    utterances = audio_artifact(folder / "utterances", [sounds], RATE_HZ)
    columns = {"key": range(len(made)), "frames": [len(s) for _, s in made], "senones": [s for _, s in made]}
    arrays = [pa.array(columns[field.name], field.type) for field in SENONE_ALIGNMENTS]
    files = {
        ".alignments.arrow": pa.table(arrays, SENONE_ALIGNMENTS),
        ".units.json": UNITS.to_json().encode(),
        ".lexicon.txt": LEXICON.encode(),
    }
    return {
        "selection": selection_artifact(folder / "selection", utterances, texts, speakers),
        "utterances": utterances,
        "units": write_artifact(folder / "units", [({}, files)], {"senones": 3}),
    }


def ran(stage: Stage[Any], p: Any, inputs: Mapping[str, Artifact], output: Path) -> Artifact:
    """The output of a stage, run in this process."""
    artifact, receipts = Artifact(output), []
    for shard, task in enumerate(stage.plan(p, inputs)):
        with ShardWriter(artifact, shard, "made") as out:
            stage.run(p, inputs, task, out, Context(work=output.with_name(f"{output.name}-work")))
            receipts.append(out.commit())
    return _finished(artifact, receipts, inputs, stage.finish(p, inputs, receipts), stage.name)


def voice_data(folder: Path, inputs: Mapping[str, Artifact], **params: Any) -> Artifact:
    """The output of `tts-data` for these inputs."""
    return ran(TtsData(), TtsDataParams(**{"mels": 20, **params}), inputs, folder)
