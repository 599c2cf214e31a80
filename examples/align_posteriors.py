"""Find two lines of text in the posteriors of a CTC model; a third line was never spoken. Needs megahour[audio]."""

import numpy as np

from megahour.align.ctc import Problem, align, cue_frames

UNITS = "_ abcdefghijklmnopqrstuvwxyz"  # the blank, the space between words, letters
LINES = ["good morning", "nothing of this", "see you soon"]
SPOKEN = [LINES[0], LINES[2]]

# What a model would give: each letter peaks in one frame of three, and half a second of silence follows each line.
rng = np.random.default_rng(0)
frames = [unit for line in SPOKEN for letter in line for unit in (UNITS.index(letter), 0, 0)] + [0] * 20
log_probs = np.log(rng.dirichlet(np.full(len(UNITS), 0.05), len(frames)).astype(np.float32) + 1e-4)
log_probs[np.arange(len(frames)), frames] = 0.0
log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))

text = [UNITS.index(letter) for line in LINES for letter in line]
problem = Problem(
    tokens=np.array(text, np.int32),
    boundaries=np.cumsum([0] + [len(line) for line in LINES]).astype(np.int32),
    skip_nats=np.full(len(LINES), 20.0, np.float32),  # what it costs to leave a line out
    star=np.ones(len(LINES) + 1, np.bool_),  # untranscribed speech may lie between lines
)
starts, ends = cue_frames(align(log_probs, problem), problem.boundaries)
for line, start, end in zip(LINES, starts, ends, strict=True):
    print(f"{line:16} " + ("not spoken" if start < 0 else f"frames {start} to {end}"))
