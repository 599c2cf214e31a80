"""What benchmarks/sphinx.py takes from a finished run: the texts and feature files of its sets, and its dictionary.

Recipes of cepstra give these themselves. Of recipes of audio, the toolkit's own front end makes them, by the values
for telephone speech that the toolkit's configuration states.
"""

from __future__ import annotations

import shutil
import subprocess
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from megahour.core.store import Artifact
from megahour.features.cepstra import FRAME_S, plan_import, read_cepstra, utterance_key
from megahour.features.open_shards import OpenShards
from megahour.features.params import ImportFeaturesParams
from megahour.features.simulated import simulated
from megahour.units.lexicon import lexicon_of

Texts = dict[int, str]
TELEPHONE = {"WAVFILE_SRATE": "8000", "NUM_FILT": "15", "LO_FILT": "200", "HI_FILT": "3500"}
FRONT_END = {"samprate": "WAVFILE_SRATE", "nfilt": "NUM_FILT", "lowerf": "LO_FILT", "upperf": "HI_FILT"}
FIXED = {"transform": "dct", "lifter": "22", "ncep": "13", "mswav": "yes", "ei": "wav", "eo": "mfc"}


class Data(NamedTuple):
    """sets: the text of each utterance's key, by set. words: their phones. settings: of sphinx_train.cfg."""

    sets: dict[str, Texts]
    words: dict[str, list[str]]
    settings: dict[str, str]


def prepared(run: Path, folder: Path) -> Data:
    """The data of a run; writes feature files folder/KEY.mfc."""
    folder.mkdir(parents=True, exist_ok=True)
    imported = Artifact(run / "features").manifest.stage == "import-features"
    return _of_cepstra(run, folder) if imported else _of_audio(run, folder)


def _of_cepstra(run: Path, folder: Path) -> Data:
    made = Artifact(run / "features").manifest.params
    own = {name: value for name, value in made.items() if name in ImportFeaturesParams.model_fields}
    params = ImportFeaturesParams.model_validate(own)
    sets: dict[str, Texts] = {}
    for name, shard in plan_import(params):
        conditions: list[Any] = ["channel", "noise", "reverb"] if name == "test" else []
        for utterance in (utterance for utterance in shard if utterance.path):
            key = utterance_key(params.corpus, utterance.name)
            sets.setdefault(name, {})[key] = utterance.text
            cepstra = read_cepstra((Path(params.source) / utterance.path).read_bytes(), params.dims)
            versions = {key: cepstra}
            for condition in conditions:
                version = utterance_key(params.corpus, utterance.name, condition)
                versions[version] = simulated(condition, cepstra, version, FRAME_S)
            for number, values in versions.items():
                count = np.array([values.size], "<i4").tobytes()
                (folder / f"{number}.mfc").write_bytes(count + values.astype("<f4").tobytes())
    dictionary = Path(Artifact(run / "lexicon").manifest.params["dictionary"]).read_text("utf-8")
    words = {word.lower(): phones for word, *phones in map(str.split, dictionary.splitlines()) if phones}
    return Data(sets, words, {})


def _of_audio(run: Path, folder: Path) -> Data:
    sets: dict[str, Texts] = {}
    for prefix in ("", "test-"):
        selection = Artifact(run / f"{prefix}selection")
        rows = [row for receipt in selection.each_receipt() for row in selection.read_table(receipt.shard).to_pylist()]
        with OpenShards(Artifact(run / f"{prefix}utterances")) as audio:
            for row in rows:
                sets.setdefault(row["set"], {})[row["key"]] = row["text"]
                with wave.open(str(folder / f"{row['key']}.wav"), "wb") as file:
                    file.setparams((1, 2, row["rate_hz"], 0, "NONE", ""))
                    file.writeframes(audio.read(row).tobytes())
    front_end(folder, [key for texts in sets.values() for key in texts], TELEPHONE)
    lexicon = lexicon_of(Artifact(run / "lexicon"))
    # The toolkit's scripts expect names of phones in ASCII
    names = sorted({phone for pronunciations in lexicon.values() for phones in pronunciations for phone in phones})
    ascii_names = {phone: f"P{i}" for i, phone in enumerate(names)}
    words = {word: [ascii_names[phone] for phone in phones] for word, (phones, *_) in lexicon.items()}
    return Data(sets, words, TELEPHONE)


def front_end(folder: Path, keys: list[int], settings: Mapping[str, str]) -> None:
    """Make folder/KEY.mfc of folder/KEY.wav as the toolkit's script 000.comp_feat does; delete the audio."""
    if not shutil.which("sphinx_fe"):
        raise SystemExit("no program sphinx_fe: install Debian's sphinxbase-utils")
    control = folder / "fileids"
    control.write_text("".join(f"{key}\n" for key in keys), "utf-8")
    every = {"c": str(control), "di": str(folder), "do": str(folder)} | FIXED
    every |= {option: settings[name] for option, name in FRONT_END.items()}
    options = [part for option, value in every.items() for part in (f"-{option}", value)]
    subprocess.run(["sphinx_fe", *options], check=True, capture_output=True)
    for key in keys:
        (folder / f"{key}.wav").unlink()
