"""Train a trigram model, and ask it for the perplexity of sentences. Needs no extra: pip install megahour"""

import subprocess
import sys
import tempfile
from pathlib import Path

from megahour.lm.query.batch import score_sentences
from megahour.lm.query.model_files import open_model

TEXT = ["the cat sat on the mat", "the dog sat on the cat", "a cat and a dog sat on a mat"] * 20

with tempfile.TemporaryDirectory() as folder:
    text, model = Path(folder) / "text.txt", Path(folder) / "lm.mlm"
    text.write_text("\n".join(TEXT) + "\n")
    train = [sys.executable, "-m", "megahour", "lm", "train", str(text), "--order", "3", "--out", str(model)]
    subprocess.run([*train, "--quiet"], check=True, stdout=subprocess.DEVNULL)

    for sentence in ("the cat sat on the dog", "the on cat dog the sat"):
        scores = score_sentences(open_model(model), [sentence])
        print(f"{scores.total.perplexity:8.2f}  {sentence}")
