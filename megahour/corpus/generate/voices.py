"""The voices of the generated corpus: accent × variant × pitch × speed, drawn once and for all.

Voice `i` is the same in every run. The first `len(VARIANTS)` voices have a variant each, so that voices 0–39 and 40–55,
say, share no vocal tract; later ones use a variant again with another accent, pitch and speed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from megahour.core.records import key_of

ACCENTS = (
    "en-us",
    "en-us",
    "en-us",
    "en",
    "en",
    "en-gb-x-rp",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-029",
    "en-us-nyc",
)

# Left out of espeak-ng's variants: robots, whispers, echoes, the two that `espeak.UNSTABLE` names, and three whose
# spectra are farthest from the plain voice (zac, Alicia, ian).
# fmt: off
VARIANTS = (
    "Alex", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Gene2", "Henrique", "Hugo", "Jacky", "Lee",
    "Mario", "Michael", "Mike", "Nguyen", "Storm", "adam", "anika", "announcer", "antonio", "aunty", "belinda",
    "benjamin", "boris", "david", "ed", "edward", "edward2", "f1", "f2", "f3", "f4", "f5", "grandma", "grandpa",
    "gustave", "iven", "iven2", "iven3", "iven4", "john", "linda", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8",
    "marcelo", "max", "michel", "miguel", "norbert", "pablo", "paul", "pedro", "quincy", "rob", "robert", "sandro",
    "shelby", "steph", "steph2", "steph3", "travis", "victor",
)
# fmt: on


class Voice(NamedTuple):
    """One speaker: an espeak-ng voice with its usual speed and pitch."""

    name: str
    accent: str
    variant: str
    words_per_minute: int
    pitch: int
    pitch_range: int


def voice(index: int) -> Voice:
    """Voice number `index` ≥ 0."""
    order = np.random.Generator(np.random.PCG64(key_of("voices"))).permutation(len(VARIANTS))
    rng = np.random.Generator(np.random.PCG64(key_of("voice", index)))
    return Voice(
        name=f"voice-{index:03d}",
        accent=ACCENTS[int(rng.integers(len(ACCENTS)))],
        variant=VARIANTS[int(order[index % len(VARIANTS)])],
        words_per_minute=int(rng.integers(135, 191)),
        pitch=int(rng.integers(35, 66)),
        pitch_range=int(rng.integers(35, 76)),
    )
