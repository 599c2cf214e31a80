"""Replay a bundle's golden clips to check that its graph, front end, tokens and texts belong together."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import BadRecord
from megahour.corpus.media.audio import AudioLimits, decode
from megahour.export.model import greedy, text_of
from megahour.export.sherpa import tokens_text
from megahour.transcribe.bundle import Bundle, GoldenClip
from megahour.transcribe.parts import parts_of
from megahour.transcribe.recogniser import Recogniser

MOST_APART = 0.01  # relative to the largest value: machines round differently
LIMITS = AudioLimits(max_clipped=1.0, silent_peak=0.0, options=False)


def replayed(bundle: Bundle) -> list[str]:
    """Run the offline fp32 graph on each golden clip and list what differs; [] if all is as exported.

    This finds changes that checksums miss if the manifest was changed, too, such as reordered tokens or another front
    end.

    Raises
    ------
    StoreError: onnxruntime cannot read or run the graph.
    """
    if bundle.read("tokens.txt").decode("utf-8", "replace") != tokens_text(bundle.manifest.tokens):
        return ["tokens.txt: its tokens are not the manifest's"]
    recogniser = Recogniser(greedy(parts_of(bundle.url)))
    return [f"{clip.file}: {what}" for clip in bundle.manifest.golden if (what := _wrong(bundle, recogniser, clip))]


def _wrong(bundle: Bundle, recogniser: Recogniser, clip: GoldenClip) -> str:
    """What is wrong with a clip; "" if nothing is."""
    try:
        expected: NDArray[np.float32] = np.load(io.BytesIO(bundle.read(clip.log_probs)), allow_pickle=False)
        samples = decode(io.BytesIO(bundle.read(clip.file)), recogniser.front.rate_hz, limits=LIMITS)[:, 0]
    except (BadRecord, EOFError, MemoryError, OverflowError, ValueError) as error:
        return f"this file or {clip.log_probs} cannot be read: {error}"
    found = recogniser.log_posteriors(recogniser.front.utterance(samples))
    if found.shape != expected.shape or expected.dtype != np.float32:
        return f"the graph's output is {found.shape}, but {clip.log_probs} is {expected.shape} of {expected.dtype}"
    apart = float(np.abs(found - expected).max(initial=0.0))
    if not apart <= MOST_APART * max(1.0, float(np.abs(expected).max(initial=0.0))):
        return f"the graph's output differs from {clip.log_probs} by {apart:.2g}"
    text, kept = text_of(recogniser, expected), clip.texts.get("offline", {}).get("fp32")
    return "" if text == kept else f'{clip.log_probs} is "{text}" in these tokens, but "{kept}" in the manifest'
