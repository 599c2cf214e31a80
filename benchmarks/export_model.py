"""Exported models against the model itself, in sherpa-onnx's own client: texts, word error rates, sizes.

    python benchmarks/export_model.py ../shared/data/fsdd [--clips 240] [--held-out george] [--work runs] [--write]

Two small conformers, CTC and a transducer of characters, learn digits from three speakers of the Free Spoken Digit
Dataset. Strings of up to three digits by the fourth, whom they have never heard, are recognised by the model, by the
graphs in onnxruntime and by sherpa-onnx, offline and in chunks. int8 is made in three ways; calibration clips are of
the training speakers.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch
import yaml
from numpy.typing import NDArray
from page import machine, publish, python

from megahour.corpus.text.edit_distance import distance
from megahour.export import play
from megahour.export.command import export_model
from megahour.export.model import TrainedModel, greedy, text_of
from megahour.export.params import ExportModelParams
from megahour.score.wer import Bootstrap, interval
from megahour.transcribe.bundle import Bundle
from megahour.transcribe.parts import parts_of
from megahour.transcribe.recogniser import Recogniser

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
RATE_HZ, TAKES, GOLDEN = 8000, 50, 8
RECIPE = """
about: a conformer for export experiments
seed: 1
threads: 1
engine: {kind: local, workers: 1}
steps:
  raw:
    stage: compose
    pattern: (?P<word>\\d)_(?P<speaker>[a-z]+)_(?P<index>\\d+)\\.wav
    licence: CC-BY-SA-4.0
    attribution: Free Spoken Digit Dataset, Zohar Jackson and contributors
    style: prompts
    hours: 0.4
    clips_per_string: [1, 3]
    gap_s: [0.1, 0.5]
    rate_hz: 8000
  recordings: {stage: ingest, inputs: {raw: raw}, rate_hz: 8000}
  utterances: {stage: cut, inputs: {recordings: recordings}, min_s: 0.3}
  selection: {stage: select, inputs: {utterances: utterances}, sets: [{name: prompts}]}
  features:
    {stage: features, inputs: {selection: selection, utterances: utterances}, mels: 40, high_hz: -400, edges: mirrored,
     scale: unit}
  model:
    {stage: train, inputs: {features: features}, kind: conformer, criterion: ctc, sets: [prompts], stack: 1,
     offsets: [0], layers: 4, hidden: 96, epochs: 0, whole_epochs: 30, batch_frames: 2048, learning_rate: 1.0e-3,
     final_learning_rate: 1.0e-4, warp: 0.1, dropout: 0.1, held_out_by: utterance}
"""
Int16 = NDArray[np.int16]
Spoken = tuple[Int16, str]


def strings(data: str, speaker: str, count: int) -> list[Spoken]:
    """Samples and words; takes in random order, each equally often."""
    rng = random.Random(7)
    takes = [(digit, take) for digit in range(10) for take in range(TAKES)]
    rng.shuffle(takes)
    made: list[Spoken] = []
    used = 0
    while len(made) < count:
        parts: list[Int16] = []
        said = []
        for _ in range(rng.randint(1, 3)):
            digit, take = takes[used % len(takes)]
            used += 1
            samples, _ = soundfile.read(f"{data}/{digit}_{speaker}_{take}.wav", dtype="int16")
            parts += [samples, np.zeros(int(rng.uniform(0.1, 0.5) * RATE_HZ), np.int16)]
            said.append(WORDS[digit])
        made.append((np.concatenate(parts[:-1]), " ".join(said)))
    return made


def wer(spoken: Sequence[Spoken], texts: Sequence[str]) -> float:
    wrong = sum(distance(said.split(), text.split()) for (_, said), text in zip(spoken, texts, strict=True))
    return 100 * wrong / sum(len(said.split()) for _, said in spoken)


def difference(spoken: Sequence[Spoken], texts: Sequence[str], exact: Sequence[str]) -> str:
    """WER of `texts` minus that of `exact`, with the 95 % interval of a paired bootstrap over strings."""
    said = [words.split() for _, words in spoken]
    wrong = [[distance(one, text.split()) for one, text in zip(said, each, strict=True)] for each in (texts, exact)]
    totals = Bootstrap(len(said), None, 2000, 0).totals(np.array([*wrong, [len(one) for one in said]]).T)
    low, high = interval(100 * (totals[:, 0] - totals[:, 1]) / totals[:, 2])
    return f"{wer(spoken, texts) - wer(spoken, exact):+.2f} ({low:+.2f} to {high:+.2f})"


def players(bundle: Bundle, model: TrainedModel, precision: str) -> dict[str, Callable[[Int16], str]]:
    """What gives the text of a clip, by (where, how)."""
    own, stream = Recogniser(greedy(parts_of(bundle.url, precision))), play.PlayedStream(bundle, precision)
    offline, streaming = play.SherpaOffline(bundle, precision), play.SherpaStream(bundle, precision)
    assert bundle.manifest.streaming is not None
    tail_s, front = bundle.manifest.streaming.latency_s, model.recogniser.front

    def tail(samples: Int16) -> Int16:
        return play.padded(samples, RATE_HZ, tail_s)

    def rows(samples: Int16) -> NDArray[np.float32]:
        return np.concatenate(list(own.front.rows_of(iter([samples.astype(np.float32)]), [])))

    return {
        "onnxruntime, offline": lambda x: text_of(own, own.log_posteriors(rows(x))),
        "onnxruntime, streaming": lambda x: text_of(own, stream.outputs(play.stream_rows(bundle, front, tail(x)))),
        "sherpa-onnx, offline": lambda x: " ".join(offline.text(x).split()),
        "sherpa-onnx, streaming": lambda x: " ".join(streaming.text(tail(x)).split()),
    }


def trained(data: str, held_out: str, work: Path) -> dict[str, str]:
    """Addresses of the models by criterion; an existing run is resumed."""
    recipe = yaml.safe_load(RECIPE)
    recipe["run"] = str(work / f"export-{held_out}")
    more = {"criterion": "transducer", "criterion_options": {"join": 96, "ctc": 0.3}}
    recipe["steps"]["transducer"] = {**recipe["steps"]["model"], **more}
    words = {str(digit): word for digit, word in enumerate(WORDS)}
    recipe["steps"]["raw"] |= {"words": words, "source": data, "leave_out": {"speaker": held_out}}
    path = work / f"export-{held_out}.yaml"
    work.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    subprocess.run([sys.executable, "-m", "megahour", "run", str(path)], check=True)
    return {"ctc": f"{recipe['run']}/model", "transducer": f"{recipe['run']}/transducer"}


def lines(asked: argparse.Namespace) -> list[str]:
    spoken = strings(asked.data, asked.held_out, asked.clips)
    addresses = trained(asked.data, asked.held_out, asked.work)
    models = {criterion: TrainedModel(parts_of(address)) for criterion, address in addresses.items()}
    sizes = (sum(p.numel() for p in model.encoder.parameters()) / 1e6 for model in models.values())
    which = f"--clips {asked.clips} --held-out {asked.held_out}"
    return [
        "# Exported models in sherpa-onnx", "",
        f"Command: `python benchmarks/export_model.py FSDD {which} --write`", "",
        f"{machine(python(), 'torch ' + torch.__version__)} One thread.",
        f"Conformers of {' and '.join(f'{size:.2f}' for size in sizes)} M parameters.",
        f"{asked.clips} strings of {sum(len(said.split()) for _, said in spoken)} digits by {asked.held_out},",
        "who is not in the training data.",
        "Differences of the WER have 95 % intervals (paired bootstrap over strings).", "",
        "| model | graphs | played by | size of fp32 | texts as the model's | WER, % | the model's | difference |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
        *(row for criterion, model in models.items() for row in rows(asked, criterion, model, spoken)),
    ]  # fmt: skip


def rows(asked: argparse.Namespace, criterion: str, model: TrainedModel, spoken: Sequence[Spoken]) -> list[str]:
    golden = [f"{asked.data}/{digit}_{asked.held_out}_{TAKES - 1}.wav" for digit in range(GOLDEN)]
    exact: dict[str, list[str]] = {}
    found = []
    for how in ("dynamic", "static", "mixed"):
        params = ExportModelParams(precisions=["fp32", "fp16", "int8"] if how == "dynamic" else ["int8"], int8=how)
        out = str(asked.work / f"export-{asked.held_out}-{criterion}-{how}")
        there = Path(out).exists()
        bundle = Bundle.open(out) if there else export_model(model.artifact.url, "", params, golden, (), out)[0]
        stream = bundle.manifest.streaming
        assert stream is not None
        if not exact:
            exact["offline"] = [model.text(model.output(samples)) for samples, _ in spoken]
            exact["streaming"] = [
                model.text(model.streamed(samples, stream.chunk, stream.left)) for samples, _ in spoken
            ]
        for precision in params.precisions:
            for name, text in players(bundle, model, precision).items():
                form = name.rpartition(" ")[2]
                texts = [text(samples) for samples, _ in spoken]
                same = sum(one == other for one, other in zip(texts, exact[form], strict=True))
                size = bundle.manifest.quantisation[f"{form} {precision}"].get("share_of_fp32", 1)
                label = f"int8 {how}" if precision == "int8" else precision
                rates = f"{wer(spoken, texts):.2f} | {wer(spoken, exact[form]):.2f} | "
                rates += difference(spoken, texts, exact[form])
                found.append(f"| {criterion} | {label} | {name} | {size:.3f} | {same} of {len(texts)} | {rates} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder of the Free Spoken Digit Dataset's recordings")
    parser.add_argument("--clips", type=int, default=240)
    parser.add_argument("--held-out", default="george")
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    publish(__file__, lines(asked), write=asked.write)


if __name__ == "__main__":
    main()
