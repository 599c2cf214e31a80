"""`synthesise` with a voice of ours beside espeak-ng's."""

from __future__ import annotations

import itertools
import json
import tarfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from made_artifacts import write_artifact
from made_voices import ran

from megahour.core.errors import ConfigError
from megahour.core.kinds import check_roles
from megahour.core.store import Artifact
from megahour.corpus.generate.params import SynthesiseParams
from megahour.features.mel_spectrum import MelSpectrum
from megahour.models import read_vocoder
from megahour.models.build import build
from megahour.models.griffin_lim import GriffinLim
from megahour.tts.own_voices import own_voices
from megahour.tts.synthesise_stage import Synthesise

MELS = 20
PHONES = "abdefɡhijklmnopɹstuvwzðŋθʃʒəɛɪɔʊæ"
TINY = {"hours": 0.005, "recording_minutes": 0.05, "voices": 3, "test_voices": 1, "conditions": ["clean"]}


def voice(folder: Path, language: str = "en") -> Artifact:
    """An untrained *model* that hums each phone of English differently."""
    config: dict[str, Any] = {
        **{"kind": "voice", "inputs": MELS, "outputs": MELS, "layers": 1, "units": 8, "decoder": "flow"},
        **{"decoder_layers": 1, "symbols": ["", " ", *PHONES], "voices": ["Ann Lee"], "languages": [language]},
        **{"language": "en-us", "scripts": ["LATIN"], "licences": ["CC-BY-4.0"], "attributions": ["Ann Lee, reader"]},
        **{"pitch": [5.0, 0.2], "spectrum": asdict(MelSpectrum(8_000, MELS))},
        "stats": {"mean": [2.0] * MELS, "inv_std": [0.7] * MELS},
    }
    module = build(config, seed=3)
    with torch.no_grad():
        module.get_parameter("symbol.weight").mul_(3.0)
    files = {".model.json": config, ".safetensors": safetensors.torch.save(module.state_dict())}
    return write_artifact(folder, [({}, files)], {})


@pytest.fixture(scope="module", autouse=True)
def few_rounds() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_vocoder, "GriffinLim", partial(GriffinLim, rounds=1))
        yield


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return voice(tmp_path_factory.mktemp("ann"))


def files_of(raw: Artifact) -> dict[str, bytes]:
    found = {}
    for receipt in raw.receipts():
        with raw.open(receipt.shard, ".tar") as file, tarfile.open(fileobj=file) as tar:
            found |= {item.name: tar.extractfile(item).read() for item in tar if item.isfile()}  # type: ignore[union-attr]
    return found


def test_a_voice_of_ours_speaks_its_share_in_the_same_bytes_however_the_work_is_cut(
    ann: Artifact, tmp_path: Path
) -> None:
    one, three = (
        ran(Synthesise(), SynthesiseParams(**TINY, shards=n), {"voice": ann}, tmp_path / str(n)) for n in (1, 3)
    )
    files = files_of(one)
    assert files == files_of(three)
    infos = [json.loads(data) for name, data in files.items() if name.endswith(".json")]
    ours = [info for info in infos if info["speaker"] == "Ann Lee"]
    assert len(infos) == 6
    assert 0 < len(ours) < 5
    assert all("synthetic" in info["attribution"] and "Ann Lee, reader" in info["attribution"] for info in ours)
    assert {info["licence"] for info in ours} == {"CC-BY-4.0"}
    assert all(name.startswith("test-voice-000") for name in files if name.startswith("test")), "tests are espeak-ng's"
    expected = {"speaker": "Ann Lee", "licence": "CC-BY-4.0", "attribution": ours[0]["attribution"]}
    assert (one.summary["own_voices"], one.summary["synthetic"]) == ([expected], True)
    truth = one.read_table(0, ".truth.parquet").to_pylist()
    said = {row["name"]: row["spoken"] for row in one.read_table(0, ".sentences.parquet").to_pylist()}
    assert any(name.startswith("train-own-Ann-Lee") for name in said)
    for name, rows in itertools.groupby(truth, key=lambda row: row["name"]):
        assert " ".join(row["text"] for row in rows).endswith(said[name])


def test_pace_and_pitch_vary_by_recording(ann: Artifact) -> None:
    p = SynthesiseParams(pace=(0.5, 2.0))
    (own,) = own_voices(p, {"voice": ann})
    lengths = []
    for seed in range(4):
        with own.speaking(np.random.default_rng(seed)) as say:
            manner = say.args[0]  # type: ignore[attr-defined]
            lengths.append((manner.pace, manner.semitones))
    assert len({pace for pace, _ in lengths}) == len({semitones for _, semitones in lengths}) == 4
    assert all(0.5 <= pace <= 2.0 and -4 <= semitones <= 4 for pace, semitones in lengths)


def test_words_have_the_times_of_their_phones(ann: Artifact) -> None:
    from megahour.corpus.generate.sentences import Sentence

    (own,) = own_voices(SynthesiseParams(pace=(1, 1)), {"voice": ann})
    with own.speaking(np.random.default_rng(0)) as say:
        spoken = say(Sentence("A bees, a sea.", "a bees, a sea."), np.random.default_rng(0))
    assert [word for word, _, _ in spoken.words] == ["a", "bees", "a", "sea"]
    edges = [edge for _, start, end in spoken.words for edge in (start, end)]
    assert edges == sorted(edges)
    assert (edges[0], edges[-1]) == (0, len(spoken.samples))
    assert edges[2] == edges[1], "no pause between a and bees"
    assert edges[4] > edges[3], "but at the comma"
    a, bees = (spoken.words[i][2] - spoken.words[i][1] for i in (0, 1))
    assert 1.2 < bees / a < 2, "three phones, and two of nearly equal length"


def test_without_voices_of_ours_the_fingerprint_is_as_before() -> None:
    new = {"bundles", "own_share", "pace", "semitones"}
    assert new.isdisjoint(SynthesiseParams().identity())
    assert SynthesiseParams(own_share=0.4).identity().keys() & new == {"own_share"}


def test_a_bundle_that_changed_is_another_job(tmp_path: Path) -> None:
    p = SynthesiseParams(bundles=[str(tmp_path)])
    (tmp_path / "bundle.json").write_text("{}")
    before = p.identity()
    (tmp_path / "bundle.json").write_text("{ }")
    assert p.identity() != before
    assert SynthesiseParams(bundles=[str(tmp_path / "none")]).identity()["digests"] == [""]


def test_voices_that_cannot_say_the_sentences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the voice speaks it, and the sentences of `synthesise` are English"):
        own_voices(SynthesiseParams(), {"voice": voice(tmp_path / "it", "it")})
    for roles, what in ((["vocoder"], "input `vocoder`"), (["lexicon"], "input `lexicon`")):
        check_roles(Synthesise(), roles)
        with pytest.raises(ConfigError, match=what):
            Synthesise().check(SynthesiseParams(), roles)
    with pytest.raises(ValueError, match="semitones is -20"):
        SynthesiseParams(semitones=(-20, 0))
