"""CTC prefix beam search with a word n-gram, compared with a peer: time, word errors, and the score that both maximise.

    python benchmarks/ctc_beam.py MODEL FEATURES LM [--peer PYTHON] [--beams 8 32] [--rounds 3]

MODEL, FEATURES, LM: artifacts of a CTC model of characters, of test utterances, and of words. peer: an interpreter
whose environment has pyctcdecode and kenlm. Both get the same posteriors, beam, language model and weights, one
thread, and take turns. The score of a text is ln p of all its CTC paths + SCALE · ln p of the language model, with
its sentence end, and UNKNOWN for each word that is not in it; it is computed for both texts by the same code, not by
either search.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.corpus.text.edit_distance import distance
from megahour.decode.params import DecodeParams
from megahour.decode.token_search import TokenSearcher
from megahour.features.stack import stack
from megahour.models.configuration import normalisation
from megahour.models.inference import load

SCALE, UNKNOWN = 0.5, -10.0
Outputs = list[NDArray[np.float32]]

PEER = """
import json, sys, time
import kenlm, numpy as np
from pyctcdecode import build_ctcdecoder
given, how = np.load(sys.argv[1]), json.loads(sys.argv[2])
outputs, lm = [given[f"arr_{i}"] for i in range(len(given.files))], kenlm.Model(how["lm"])
labels = ["" if i == 0 else token for i, token in enumerate(how["tokens"])]
offset = how["unknown"] / (how["scale"] * np.log(10))
weights = {"alpha": how["scale"], "beta": 0.0, "unk_score_offset": offset}
decoder = build_ctcdecoder(labels, how["lm"], unigrams=how["words"], **weights)
limits = {} if how["pruned"] else {"beam_prune_logp": -1e9, "token_min_logp": -1e9}
decoder.decode(outputs[0], beam_width=how["beams"], **limits)
began = time.process_time()
texts = [decoder.decode(each, beam_width=how["beams"], **limits) for each in outputs]
took = time.process_time() - began
score = lambda text: lm.score(text, bos=True, eos=True) * np.log(10)
print(json.dumps({"s": took, "texts": texts, "lm": [[score(t) for t in some] for some in (texts, how["texts"])]}))
"""


def posteriors(model: str, features: str) -> tuple[dict[str, Any], Outputs, list[str]]:
    """The model's configuration, log posteriors (T, V) of each utterance, and the texts."""
    loaded, artifact = load(model), Artifact(features)
    mean, inv_std, size = normalisation(loaded.config, where=model)
    outputs, texts = [], []
    for receipt in artifact.receipts():
        if receipt.tags.get("set") == "test":
            for row in artifact.read_table(receipt.shard, ".arrow", columns=["text", "features"]).to_pylist():
                rows = np.asarray(row["features"], np.float16).reshape(-1, len(mean))
                if len(rows) >= size:
                    given = stack(rows, 0, mean, inv_std, size)
                    found, _ = loaded(given[None], np.array([len(given)]))
                    outputs.append(found["log_probs"][0])
                    texts.append(row["text"])
    return dict(loaded.config), outputs, texts


def ours(config: dict[str, Any], lm: str, outputs: Outputs, beams: int) -> tuple[float, list[str]]:
    p = DecodeParams(beams=beams, lm_scale=SCALE, unknown_word=UNKNOWN)
    searcher = TokenSearcher(config, None, p, {"lm": Artifact(lm)})
    searcher(outputs[:1])  # compiles
    began = time.process_time()
    found = [searcher([output])[0] for output in outputs]
    took = time.process_time() - began
    paths = [each[0].path.labels for each in found if not isinstance(each, ValueError)]
    return took, [" ".join(word.text for word in searcher.words(path)) for path in paths]


def scores(config: dict[str, Any], words: set[str], outputs: Outputs, texts: Sequence[str], lm: Any) -> Any:
    """(N,) of what both searches look for."""
    found = []
    for output, text, ln_p in zip(outputs, texts, lm, strict=True):
        tokens = torch.tensor([[config["tokens"].index(c) for c in text]])
        lengths = torch.tensor([len(output)]), torch.tensor([tokens.shape[1]])
        loss = torch.nn.functional.ctc_loss(torch.from_numpy(output)[:, None], tokens, *lengths, reduction="sum")
        found.append(-float(loss) + SCALE * ln_p + UNKNOWN * len([w for w in text.split() if w not in words]))
    return np.array(found)


def errors(texts: Sequence[str], said: Sequence[str]) -> float:
    wrong = sum(distance(one.split(), other.split()) for one, other in zip(said, texts, strict=True))
    return 100 * wrong / sum(len(one.split()) for one in said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "features", "lm"):
        parser.add_argument(name)
    parser.add_argument("--peer", default="")
    parser.add_argument("--beams", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    torch.set_num_threads(1)
    config, outputs, said = posteriors(a.model, a.features)
    seconds = sum(map(len, outputs)) * int(config["stack"]) * int(config.get("subsample", 1)) / 100
    artifact = Artifact(a.lm)
    arpa = Path(a.lm) / "shards" / "00000.arpa"
    words = set(artifact.read_bytes(0, ".vocab.txt").decode().split())
    print(f"{platform.machine()}, one thread, {len(outputs)} utterances, {seconds / 60:.1f} minutes, {a.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/outputs.npz", *outputs)
        for beams in a.beams:
            mine = [ours(config, a.lm, outputs, beams)]
            print(
                f"beams {beams}, ours: WER {errors(mine[0][1], said):.2f} %, RTF {mine[0][0] / seconds:.5f}", flush=True
            )
            for pruned in (False, True) if a.peer else ():
                how = {"lm": str(arpa), "tokens": config["tokens"], "words": sorted(words), "scale": SCALE}
                how |= {"unknown": UNKNOWN, "beams": beams, "pruned": pruned, "texts": mine[0][1]}
                theirs, ratios = {}, []
                for _ in range(a.rounds):
                    mine.append(ours(config, a.lm, outputs, beams))
                    command = [a.peer, "-c", PEER, f"{folder}/outputs.npz", json.dumps(how)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    theirs = json.loads(done.stdout.splitlines()[-1])
                    ratios.append(mine[-1][0] / theirs["s"])
                own = scores(config, words, outputs, mine[0][1], theirs["lm"][1])
                other = scores(config, words, outputs, theirs["texts"], theirs["lm"][0])
                better, worse = int((own > other + 1e-3).sum()), int((own < other - 1e-3).sum())
                print(
                    f"  the peer{', its usual pruning' if pruned else ', without pruning'}: WER "
                    f"{errors(theirs['texts'], said):.2f} %, RTF {theirs['s'] / seconds:.5f}, time ratio "
                    f"{statistics.median(ratios):.3f}; our score is higher for {better}, lower for {worse}, mean "
                    f"difference {float((own - other).mean()):.4f} nats",
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
