"""A vocoder begins as Griffin-Lim, learns from samples beside its judges, and speaks for voices."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
import torch
from click.testing import CliRunner
from made_once import made_once
from made_voices import LEXICON, TINY, corpus, ran, voice_data
from trainings import trained

from megahour.batches.sound_labels import SUFFIX
from megahour.cli.main import app
from megahour.core.errors import ConfigError
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.export import voice
from megahour.export.origin import ModelOrigin
from megahour.export.params import ExportModelParams
from megahour.export.voice import write_voice_bundle
from megahour.features.mel_spectrum import MelSpectrum
from megahour.learn.params import TrainParams
from megahour.models import vocoder
from megahour.models.build import build
from megahour.models.griffin_lim import GriffinLim
from megahour.models.vocoder import PeriodJudge, SpectrumJudge, VocoderModel, spectral_distance
from megahour.train.session import SPOKEN, train
from megahour.train.stage import Train
from megahour.tts.params import SpeakParams
from megahour.tts.speak_stage import Speak
from megahour.tts.speaking import Manner, Speaker
from megahour.units.lexicon import read_lexicon

pytest.importorskip("pyworld", reason="needs the extra tts")
SPECTRUM = MelSpectrum(8_000, 20)
SIZES: dict[str, Any] = {"criterion_options": {"rounds": 2, "judge_units": 2}, "held_out": 0.3}
SOUND: dict[str, Any] = {**TINY, "kind": "vocoder", "criterion": "sound", "whole_epochs": 2, **SIZES}


def small(**more: Any) -> VocoderModel:
    config = {
        **{"kind": "vocoder", "inputs": 20, "outputs": 20, "layers": 1, "units": 8, "rounds": 2, "judge_units": 2},
        **{"spectrum": asdict(SPECTRUM), "stats": {"mean": [-3.0] * 20, "inv_std": [0.5] * 20}},
        **more,
    }
    module = build(config, seed=1)
    assert isinstance(module, VocoderModel)
    return module


def tone(samples: int = 8_000) -> torch.Tensor:
    """(1, samples)."""
    at = np.arange(samples) / 8_000
    noise = np.random.default_rng(1).normal(0, 0.01, samples)
    return torch.from_numpy((0.3 * np.sin(2 * np.pi * 220 * at) * np.cos(9 * at) + noise).astype(np.float32))[None]


def test_a_vocoder_is_scored_on_recordings_while_it_trains(tmp_path: Path, made: Path) -> None:
    asked = {"score_speech": {"every": 1, "utterances": 1}}
    weights, rows = trained(tmp_path, {"features": Artifact(made / "data")}, SOUND | asked)
    plain = Artifact(made / "vocoder")
    assert weights == plain.read_bytes(0, ".safetensors")
    assert b"held_out_mcd_db" not in plain.read_bytes(0, ".curves.jsonl")
    said = pq.read_table(io.BytesIO(Artifact(tmp_path / "model").read_bytes(0, SPOKEN))).to_pylist()
    natural = {row["key"]: row["sound"] for row in Artifact(made / "data").read_table(0, SUFFIX).to_pylist()}
    for row in said:
        recording, made_of_mels = (
            soundfile.read(io.BytesIO(row[name]), dtype="int16")[0] for name in ("natural", "spoken")
        )
        assert recording.tolist() == pytest.approx(natural[row["key"]], abs=1)
        assert len(made_of_mels) == pytest.approx(len(recording), abs=160), "it has the recording's timing"
    assert rows[-1]["held_out_mcd_db"] > 0
    assert rows[-1].keys() >= {"held_out_pesq", "held_out_stoi"}


def test_a_voice_trains_with_its_vocoder(tmp_path: Path, made: Path) -> None:
    """Its held-out speech sounds otherwise; its weights are the same."""
    inputs = {"features": Artifact(made / "data")}
    settings = TINY | {"whole_epochs": 1, "rows": 1}
    first, rows = trained(tmp_path / "one", inputs, settings)
    second, others = trained(tmp_path / "two", inputs | {"vocoder": Artifact(made / "vocoder")}, settings)
    assert first == second
    assert rows[-1]["held_out_mcd_db"] != others[-1]["held_out_mcd_db"]
    with pytest.raises(ConfigError, match="a model of kind voice, not vocoder"):
        trained(tmp_path / "three", inputs | {"vocoder": Artifact(made / "voice")}, settings)
    with pytest.raises(ConfigError, match="`vocoder` makes the held-out speech of a voice"):
        trained(tmp_path / "four", inputs | {"vocoder": Artifact(made / "vocoder")}, SOUND)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A voice and a vocoder, both hardly trained."""

    def make(folder: Path) -> None:
        data = voice_data(folder / "data", corpus(folder), sound=True)
        ran(Train(), TrainParams(**TINY | {"whole_epochs": 1}), {"features": data}, folder / "voice")
        ran(Train(), TrainParams(**SOUND), {"features": data}, folder / "vocoder")

    return made_once(tmp_path_factory, "vocoder", make)


def test_it_begins_as_griffin_lim() -> None:
    mel = torch.from_numpy(SPECTRUM.of(tone()[0].numpy()))[None]
    with torch.no_grad():
        mine, plain = small().vocoder(mel), GriffinLim(SPECTRUM, 2)(mel)
    assert mine.shape == (1, 8_000)
    np.testing.assert_allclose(mine, plain, atol=1e-3)


def test_the_samples_are_those_of_the_mels(made: Path) -> None:
    data = Artifact(made / "data")
    for row, own in zip(data.read_table(0, ".arrow").to_pylist(), data.read_table(0, SUFFIX).to_pylist(), strict=True):
        assert own["key"] == row["key"]
        assert len(own["sound"]) == 80 * (row["frames"] - 1)
        again = SPECTRUM.of(np.array(own["sound"], np.float32) / 32768)[4:-4]
        mels = np.array(row["features"], np.float32).reshape(-1, 20)[4:-4]
        np.testing.assert_allclose(again, mels, atol=0.01)


@pytest.mark.parametrize("in_parts", [False, True])
def test_judges_learn_from_both_and_the_vocoder_from_what_they_say(in_parts: bool) -> None:
    """One backward pass; neither side's gradient is of the other's loss."""
    real, made = tone(), (0.5 * tone()).requires_grad_()
    for judge in (PeriodJudge(3, 2), SpectrumJudge(128, 2)):
        vocoder._learnt(judge, made, real, in_parts).sum().backward()
        own = [weight.grad.clone() for weight in judge.parameters() if weight.grad is not None]
        towards = made.grad.clone() if made.grad is not None else None
        judge.zero_grad()
        learns = (1 - judge(real)[-1]).square() + judge(made.detach())[-1].square()
        learns.mean().backward()
        for mine, alone in zip(own, (weight.grad for weight in judge.parameters()), strict=True):
            torch.testing.assert_close(mine, alone)
        made.grad = None
        found, goal = judge(made), judge(real)
        near = [(one - other.detach()).abs().mean() for one, other in zip(found[:-1], goal[:-1], strict=True)]
        ((1 - found[-1]).square().mean() + torch.stack(near).mean()).backward()
        torch.testing.assert_close(towards, made.grad)
        made.grad = None


def test_it_learns_a_tone() -> None:
    module, sound = small(), tone()
    mel = (torch.from_numpy(SPECTRUM.of(sound[0].numpy()))[None] + 3.0) * 0.5
    targets, lengths = {"sound": sound}, torch.tensor([mel.shape[1]])
    generator, steps = torch.Generator().manual_seed(1), torch.optim.AdamW(module.parameters(), 1e-2)
    before = module(mel, lengths, None, targets).item()
    for _ in range(25):
        steps.zero_grad()
        (module(mel, lengths, generator, targets).sum() / lengths.sum()).backward()
        steps.step()
    after = module(mel, lengths, None, targets).item()
    assert after < 0.9 * before
    assert module.vocoder.out.weight.abs().max() > 0


def test_short_utterances_end_in_silence() -> None:
    module, sound = small(), tone(1_600)
    mel = torch.zeros((1, 30, 20))
    segment, real = module._segments(mel, torch.tensor([20]), sound, None)
    assert segment.shape == (1, vocoder.SEGMENT, 20)
    assert torch.equal(real[0, : 19 * 80], sound[0, : 19 * 80])
    assert not real[0, 19 * 80 :].any()
    raw = segment[0] / module.vocoder.inv_std + module.vocoder.mean
    np.testing.assert_allclose(raw[20:], np.log(1e-4), atol=1e-4)
    assert not segment[0, :20].any()


def test_spectra_of_equal_sound_are_not_apart() -> None:
    sound = tone()
    assert float(spectral_distance(sound, sound)) == 0.0
    assert float(spectral_distance(0.5 * sound, sound)) > 0.1


class Killed(Exception):
    """Stands for a kill."""


def test_a_killed_training_goes_on_to_the_same_bytes(tmp_path: Path, made: Path) -> None:
    """Judges and what is drawn are in the checkpoint, too."""
    inputs = {"features": Artifact(made / "data")}

    def kill(done: int, *rest: Any, **shown: Any) -> None:
        if done >= 2:
            raise Killed

    with ShardWriter(Artifact(tmp_path / "model"), 0, "made") as out, pytest.raises(Killed):
        train(TrainParams(**SOUND), inputs, out, Context(work=tmp_path / "work", progress=kill))
    assert trained(tmp_path, inputs, SOUND)[0] == Artifact(made / "vocoder").read_bytes(0, ".safetensors")


def test_speaking_with_a_vocoder(made: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(LEXICON)
    options = ["say", "ab ba", "--voice", f"{made}/voice", "--lexicon", str(tmp_path / "words.txt")]
    for name, more in (("plain", []), ("trained", ["--vocoder", f"{made}/vocoder"])):
        done = CliRunner().invoke(app, [*options, *more, "--out", str(tmp_path / f"{name}.wav")])
        assert done.exit_code == 0, done.output
    plain, other = ((tmp_path / f"{name}.wav").read_bytes() for name in ("plain", "trained"))
    assert len(plain) == len(other)
    assert plain != other
    inputs = {name: Artifact(made / name) for name in ("voice", "vocoder")}
    texts = {"texts": Artifact(made / "selection"), "lexicon": Artifact(made / "units")}
    spoken = ran(Speak(), SpeakParams(), {**texts, **inputs}, tmp_path / "spoken")
    alone = ran(Speak(), SpeakParams(), {**texts, "voice": inputs["voice"]}, tmp_path / "alone")
    assert spoken.read_bytes(0, ".tar") != alone.read_bytes(0, ".tar")


def test_a_bundle_with_a_vocoder(made: Path, tmp_path: Path) -> None:
    own = Speaker(f"{made}/voice", lexicon=read_lexicon(LEXICON), vocoder=f"{made}/vocoder")
    origin, params = ModelOrigin({"model": {"digest": "d" * 64}}), ExportModelParams(matcha=True)
    bundle, found = write_voice_bundle(own, params, origin, ["ab, ba."], [], str(tmp_path / "bundle"))
    assert max(found.largest.values()) < voice.CLOSE
    assert {"onnxruntime", "onnxruntime (matcha)"} <= found.largest.keys()
    assert bundle.manifest.provenance["vocoder"]["digest"] == Artifact(made / "vocoder").manifest.digest
    golden = np.load(tmp_path / "bundle" / bundle.manifest.golden[0].samples)
    mine = next(own.say("ab, ba.", Manner(spread=0.0))).samples
    assert np.array_equal(golden, mine)


def test_what_is_no_vocoder_or_does_not_fit(made: Path, tmp_path: Path) -> None:
    lexicon = read_lexicon(LEXICON)
    with pytest.raises(ConfigError, match="a model of kind voice, not vocoder"):
        Speaker(f"{made}/voice", lexicon=lexicon, vocoder=f"{made}/voice")
    with pytest.raises(ConfigError, match="a model of kind vocoder, not a voice"):
        Speaker(f"{made}/vocoder", lexicon=lexicon)
    other = voice_data(tmp_path / "data", {n: Artifact(made / n) for n in ("selection", "utterances", "units")})
    with pytest.raises(ConfigError, match="without samples"):
        ran(Train(), TrainParams(**SOUND), {"features": other}, tmp_path / "model")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"criterion": "speech", "criterion_options": {}}, "kind voice and criterion speech go together"),
        ({"kind": "voice"}, "kind voice and criterion speech go together"),
        ({"tempo": 0.1}, "would change the speech that a vocoder learns"),
        ({"epochs": 1}, "a vocoder learns whole utterances"),
    ],
)
def test_settings_that_are_not_for_vocoders(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainParams(**SOUND | settings)


def test_judges_keep_their_weights_while_the_vocoder_learns_from_them() -> None:
    """Other threads, with the rest of the batch, train them meanwhile."""
    module, seen = small(), []
    for judge in module.judges:

        def look(called: torch.nn.Module, _: Any, judge: torch.nn.Module = judge) -> None:
            if called is judge:
                seen.append(all(weight.requires_grad for weight in judge.parameters()))

        judge.register_forward_pre_hook(look)
    lengths, targets = torch.tensor([60]), {"sound": tone(60 * 80)}
    module(torch.zeros(1, 60, 20), lengths, torch.Generator().manual_seed(1), targets).sum().backward()
    assert seen == [True] * 2 * len(module.judges)


@pytest.mark.parametrize("wrong", [{"spectrum": {}}, {"stats": {"mean": [1.0], "inv_std": [1.0]}}, {"rounds": -1}])
def test_a_configuration_that_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        small(**wrong)
