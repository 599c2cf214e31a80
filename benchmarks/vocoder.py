"""Griffin-Lim beside a trained vocoder, on recordings that neither has learnt from: their own mels, and a voice's.

    python benchmarks/vocoder.py RUN VOCODER [FILE.py:function]

RUN: of `megahour run voice`, with steps `test` and `voice`. The function hears float32 samples and their rate;
without it there are no word errors. DNSMOS needs the extra `mos`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megahour.core.hooks import load_function
from megahour.core.store import Artifact
from megahour.corpus.media.tar import ShardAudio
from megahour.corpus.text.normalise import normalise
from megahour.features.distortion import analyse, distortion
from megahour.features.perceived import dnsmos, pesq_and_stoi
from megahour.models.read_vocoder import vocoder_at
from megahour.score.wer import word_edits
from megahour.tts.speaking import Manner, Speaker

Float32 = NDArray[np.float32]
DRAWS = 2_000


def measured(
    true: Float32, said: Float32, rate_hz: int, text: str, hear: Callable[..., str] | None, *, in_time: bool
) -> dict[str, float]:
    """Of one utterance; in_time: `said` has the timing of `true`, so PESQ and STOI say something."""
    found = {"mcd_db": distortion(analyse(true, rate_hz), analyse(said, rate_hz)).mcd_db}
    found |= pesq_and_stoi(true, rate_hz, said, rate_hz) if in_time else {}
    found |= {"mos": dnsmos(said, rate_hz)["mos"]} if find_spec("speechmos") else {}
    if hear is not None:
        edits = word_edits(text, normalise(hear(said, rate_hz), "en").text)
        found |= {"errors": edits.errors, "words": edits.length}
    return found


def utterances(run: str) -> list[tuple[str, Float32]]:
    """Text and samples of the test."""
    test, found = Artifact(f"{run}/test"), []
    for receipt in test.receipts():
        with ShardAudio(test, receipt.shard) as audio:
            for row in test.read_table(receipt.shard).to_pylist():
                found.append((row["text"], audio.read(row["offset"], row["size"]).astype(np.float32) / 32768))
    return found


def main(run: str, url: str, recogniser: str = "") -> None:
    hear = load_function(recogniser, "recogniser") if recogniser else None
    speaker = Speaker(f"{run}/voice")
    spectrum = speaker.spectrum
    vocoders = {"Griffin-Lim": vocoder_at("", spectrum).module, "trained": vocoder_at(url, spectrum).module}
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    cpu_s, sound_s = dict.fromkeys(vocoders, 0.0), 0.0
    for number, (text, true) in enumerate(utterances(run)):
        mels = {"natural": torch.from_numpy(spectrum.of(true))[None]}
        for piece in speaker.reader().pieces(text):
            mels.setdefault("predicted", speaker.mel(piece, Manner(), number)[0])
        for kind, mel in mels.items():
            sound_s += mel.shape[1] / 100
            for name, module in vocoders.items():
                began_s = time.process_time()
                with torch.no_grad():
                    said = module(mel)[0].numpy().clip(-1, 1)
                cpu_s[name] += time.process_time() - began_s
                found = measured(true, said, spectrum.rate_hz, text, hear, in_time=kind == "natural")
                rows.setdefault((kind, name), []).append(found)
    for (kind, name), each in rows.items():
        print(f"{kind} mels, {name}: {means(each)}")
    for kind in ("natural", "predicted"):
        print(f"{kind} mels, trained less Griffin-Lim: {differences(rows[kind, 'Griffin-Lim'], rows[kind, 'trained'])}")
    print(", ".join(f"{name} {used / sound_s:.4f} CPU-s per second of speech" for name, used in cpu_s.items()))


def means(rows: list[dict[str, float]]) -> str:
    values = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
    said = [f"{name} {np.nanmean(own):.3f}" for name, own in values.items() if name not in ("errors", "words")]
    if "words" in values:
        said.append(f"words wrong {100 * values['errors'].sum() / values['words'].sum():.2f} %")
    return ", ".join([*said, f"{len(rows)} utterances"])


def differences(one: list[dict[str, float]], other: list[dict[str, float]]) -> str:
    """With 95 % intervals over utterances, in pairs."""
    rng, said = np.random.Generator(np.random.PCG64(1)), []
    for name in one[0]:
        if name == "words":
            continue
        apart: Any = np.array([b[name] - a[name] for a, b in zip(one, other, strict=True)], float)
        apart = apart[np.isfinite(apart)]
        apart = 100 * apart * len(apart) / sum(row["words"] for row in one) if name == "errors" else apart
        low, high = np.percentile(rng.choice(apart, (DRAWS, len(apart))).mean(axis=1), (2.5, 97.5))
        unit = "words wrong, % points" if name == "errors" else name
        said.append(f"{unit} {apart.mean():+.3f} ({low:+.3f} … {high:+.3f})")
    return ", ".join(said)


if __name__ == "__main__":
    main(*sys.argv[1:])
