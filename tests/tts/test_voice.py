"""From aligned speech to a voice that speaks: data, training, speech and its scores, on two phones."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import soundfile
import torch
from click.testing import CliRunner
from made_artifacts import write_artifact
from made_once import made_once
from made_voices import LEXICON, TEXTS, TINY, corpus, ran, voice_data
from trainings import trained

from megahour.batches.loader import Batch
from megahour.cli.main import app
from megahour.core.errors import ConfigError, MegahourError
from megahour.core.records import key_of
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.learn.data import held_out_rule
from megahour.learn.params import TrainParams
from megahour.models.build import build
from megahour.models.inference import load
from megahour.models.voice import VoiceModel
from megahour.train.held_out.speech import HeldOutSpeech
from megahour.train.session import train
from megahour.train.stage import Train
from megahour.tts.data_shard import confidences, forbids_derivatives
from megahour.tts.data_stage import mixed_voices
from megahour.tts.params import ScoreSpeechParams, SpeakParams
from megahour.tts.score_stage import ScoreSpeech
from megahour.tts.speak_stage import Speak
from megahour.tts.speaking import Manner, Speaker
from megahour.tts.voices import speaker_at
from megahour.units.lexicon import read_lexicon

pytest.importorskip("pyworld", reason="needs the extra tts")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, the data of a voice, and a voice that is hardly trained."""

    def make(folder: Path) -> None:
        data = voice_data(folder / "data", corpus(folder))
        model = ran(Train(), TrainParams(**TINY), {"features": data}, folder / "model")
        rows = [json.loads(line) for line in model.read_bytes(0, ".curves.jsonl").splitlines()]
        assert rows[-1]["loss"] < rows[0]["loss"]

    return made_once(tmp_path_factory, "voice", make)


def rows_of(data: Artifact) -> list[dict[str, Any]]:
    return [row for r in data.receipts() for row in data.read_table(r.shard, ".arrow").to_pylist()]


def test_what_a_voice_learns_from(made: Path) -> None:
    data = Artifact(made / "data")
    assert data.summary["symbols"] == ["", " ", "a", "b"]
    assert data.summary["voices"].keys() == {"s0"}
    assert data.summary["scripts"] == ["LATIN"]
    for row in rows_of(data):
        spelled = "".join(data.summary["symbols"][phone] for phone in row["phones"])
        assert spelled.strip() == row["text"].replace(" ", "")
        assert sum(row["durations"]) == row["frames"] == len(row["features"]) // 20
        loud = np.array(row["energy"])
        assert loud[[0, -1]].max() < loud[1:-1].min(), "silence around it is quieter than each phone"
        assert np.exp(row["pitch"][1:-1]) == pytest.approx(150, rel=0.25)
    assert np.exp(data.summary["pitch"][0]) == pytest.approx(150, rel=0.25)


@pytest.mark.parametrize(
    ("params", "reason"),
    [({"most_s": 0.3}, "too-long"), ({"phone_s": 0.07}, "badly-aligned"), ({"silence_db": 50}, "loud-background")],
)
def test_what_is_left_out(tmp_path: Path, made: Path, params: dict[str, Any], reason: str) -> None:
    inputs = {name: Artifact(made / name) for name in ("selection", "utterances", "units")}
    data = voice_data(tmp_path / "data", inputs, **params)
    counts = data.receipt_of(0).counts
    assert counts.dropped[reason] > 0
    assert counts.kept + counts.dropped[reason] == len(TEXTS)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"low_hz": 3000, "high_hz": 1000}, "mel filters from 3000 to 1000 Hz"),
        ({"high_hz": 9000}, "mel filters from 30 to 9000 Hz at a rate of 8000 Hz"),
        ({"mels": 256, "window_s": 0.02}, "of 256 mel filters lie between two frequencies"),
        ({"language": "english"}, 'espeak-ng has no voice "english"'),
        ({"language": "en-us", "languages": {"it": "italiano"}}, 'espeak-ng has no voice "italiano"'),
    ],
)
def test_data_that_no_voice_can_learn_from_or_speak_with(
    tmp_path: Path, made: Path, params: dict[str, Any], said: str
) -> None:
    inputs = {name: Artifact(made / name) for name in ("selection", "utterances", "units")}
    with pytest.raises(MegahourError, match=said):
        voice_data(tmp_path / "data", inputs, **params)


def test_wrong_texts_are_found_by_their_sound(tmp_path: Path) -> None:
    texts = ["ab ba ab", "ba ba ba", "a"] * 20
    wrong = {3: "ba ab ba", 7: "ab ab ab"}
    inputs = corpus(tmp_path, texts=texts, said=[wrong.get(n, text) for n, text in enumerate(texts)])
    data = voice_data(tmp_path / "data", inputs)
    bad = [json.loads(line) for line in (tmp_path / "data/quarantine/00000.jsonl").read_text().splitlines()]
    assert [each["reason"] for each in bad] == ["doubtful-text"] * 2
    assert [each["detail"].endswith(repr(texts[n])) for n, each in zip(wrong, bad, strict=True)] == [True, True]
    assert data.receipt_of(0).counts.kept == len(texts) - 2
    kept = voice_data(tmp_path / "all", inputs, least_confidence=-100)
    assert kept.receipt_of(0).counts.kept == len(texts)


def test_confidence_needs_enough_to_compare_with() -> None:
    rng = np.random.default_rng(0)
    phones = [rng.permutation(np.array([2, 3, 4, 5, 6], np.int16)) for _ in range(50)]
    spread = [np.repeat(each, 8)[:, None] for each in phones]  # of the noise: a loud phone is near to all
    mels = [(each**3 + rng.normal(0, each)).astype(np.float32) for each in (np.repeat(s, 20, 1) for s in spread)]
    frames = [np.full(5, 8, np.int32)] * 50
    found = confidences(mels, phones, frames, silent=1)
    assert ((found > -0.2) & (found <= 0)).all()
    silences = [np.append(each, np.int16(1)) for each in phones]
    assert (confidences(mels, silences, [np.append(each, np.int32(0)) for each in frames], silent=1) == found).all()
    assert np.isnan(confidences(mels[:49], phones[:49], frames[:49], silent=1)).all()
    assert np.isnan(confidences(mels, phones, frames, silent=2)).all(), "four phones each"
    phones[7] = np.roll(phones[7], 1)
    assert confidences(mels, phones, frames, silent=1)[7] < -2


def test_seconds_of_a_voice_count_frames_as_they_are_at_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 220 samples at 22,050 Hz: taken for 10 ms, a voice had 0.23 % too much speech."""
    monkeypatch.setattr("made_voices.RATE_HZ", 22_050)
    data = voice_data(tmp_path / "data", corpus(tmp_path, texts=["ab ba ab"] * 20))
    frames = sum(row["frames"] for row in rows_of(data))
    assert frames > 1000
    assert data.receipt_of(0).stats["audio_s"] == pytest.approx(frames * 220 / 22_050, abs=1e-3)
    assert data.summary["voices"]["s0"] == pytest.approx(frames * 220 / 22_050, abs=0.01)


def test_files_that_name_no_speaker_do_not_become_many_voices_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    voice_data(tmp_path / "data", corpus(tmp_path, speakers=8, texts=["ab ba"] * 16))
    assert "less than a minute" not in caplog.text
    voice_data(tmp_path / "more", corpus(tmp_path / "b", speakers=16, texts=["ab ba"] * 16))
    assert "16 of 16 voices have less than a minute of speech" in caplog.text
    assert "--speaker NAME" in caplog.text


def test_two_voices_under_one_name_are_detected_by_pitch() -> None:
    one, other = [(90, 12), (93, 8)], [(78, 3)]
    assert mixed_voices([{"a": one}]) == {}
    assert mixed_voices([{"a": one, "b": one}, {"a": other}]) == {"a": round(3 / 23, 4)}
    assert mixed_voices([{"a": one}, {"a": [(84, 9)]}]) == {}, "a lively voice"
    assert mixed_voices([{"a": [(90, 5), (70, 5)]}]) == {}, "too few to say"


def test_texts_of_the_test_are_not_learnt(tmp_path: Path, made: Path) -> None:
    inputs = {name: Artifact(made / name) for name in ("selection", "utterances", "units")}
    texts = write_artifact(tmp_path / "test", [({}, {".parquet": pa.table({"text": ["ba", "b b", "ab"]})})], {})
    data = voice_data(tmp_path / "data", {**inputs, "test": texts})
    assert [row["text"] for row in rows_of(data)] == [text for text in TEXTS if text not in ("ba", "ab")]
    assert data.receipt_of(0).counts.dropped == {"in-test": 2}


def test_licences_that_forbid_a_voice() -> None:
    assert forbids_derivatives("CC-BY-NC-ND-4.0")
    assert not forbids_derivatives("CC-BY-SA-3.0")


class Stopped(Exception):
    """Stands for a kill."""


def test_a_stopped_training_goes_on_to_the_same_bytes(tmp_path: Path, made: Path) -> None:
    inputs, p = {"features": Artifact(made / "data")}, TrainParams(**TINY)

    def stop(done: int, *rest: Any, **shown: Any) -> None:
        if done >= 5:
            raise Stopped

    with ShardWriter(Artifact(tmp_path / "model"), 0, "made") as out, pytest.raises(Stopped):
        train(p, inputs, out, Context(work=tmp_path / "work", progress=stop))
    assert trained(tmp_path, inputs, TINY)[0] == Artifact(made / "model").read_bytes(0, ".safetensors")


def test_a_voice_of_several_speakers_holds_out_none_of_them_whole(tmp_path: Path) -> None:
    data = voice_data(tmp_path / "data", corpus(tmp_path, speakers=2))
    by_speaker = TrainParams(**TINY | {"held_out_by": "speaker"})
    with pytest.raises(ConfigError, match=r"not learn to speak as s1, .*\nRemedy: set held_out_by: utterance"):
        ran(Train(), by_speaker, {"features": data}, tmp_path / "refused")
    assert held_out_rule(TrainParams(**TINY), data)


def test_held_out_speech_is_judged_while_a_voice_trains(made: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = [json.loads(line) for line in Artifact(made / "model").read_bytes(0, ".curves.jsonl").splitlines()]
    assert all(row["held_out_mcd_db"] > 0 for row in rows)
    assert all(0 <= row["held_out_voicing"] <= 1 for row in rows)
    events = EventAccumulator(str(made / "model-work" / "tensorboard"), {"audio": 0}).Reload()
    sounds = {name: events.Audio(name) for name in events.Tags()["audio"]}
    keys = {name.partition("/")[2] for name in sounds}
    assert keys
    assert sounds.keys() == {f"{kind}/{key}" for kind in ("natural", "spoken") for key in keys}
    for key in keys:
        assert [each.step for each in sounds[f"spoken/{key}"]] == sorted({row["step"] for row in rows})
        assert len(sounds[f"natural/{key}"]) == 1
        assert sounds[f"natural/{key}"][0].sample_rate == 8000


class Parrot(VoiceModel):
    """Says what was recorded, or nothing but the mean."""

    said: torch.Tensor | None = None

    def speak(self, phones: torch.Tensor, *rest: Any, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        mels = torch.zeros((1, 60, self.mels)) if self.said is None else self.said[None]
        return mels, torch.ones_like(phones)


def test_a_voice_that_says_the_recording_is_not_distorted(made: Path) -> None:
    config = json.loads(Artifact(made / "model").read_bytes(0, ".model.json"))
    frames = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 900, 20)).astype(np.float32))
    targets = {"phones": np.array([[1, 2, 0]]), "voices": np.array([0]), "languages": np.array([0])}

    def batch(key: int, length: int) -> Batch:
        return Batch(frames.numpy(), np.array([length]), [key], targets)

    speech, module = HeldOutSpeech(config), Parrot(len(config["symbols"]), 20, 8, 1, decoder="fast")
    module.said = frames[0, :100]
    means, sounds = speech.spoken(module, [batch(1, 900), batch(2, 100)])
    assert means[0] == means[2] == 0.0
    assert sounds.keys() == {"natural/2", "spoken/2"}, "the first is too long"
    module.said = None
    means, sounds = speech.spoken(module, [])
    assert means[0] > 1
    assert sounds.keys() == {"spoken/2"}, "the recording is known by now"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"criterion": "ctc", "criterion_options": {}}, "go together"),
        ({"time_masks": 1}, "time_masks would change the speech"),
        ({"epochs": 1}, "whole utterances"),
    ],
)
def test_settings_that_are_not_for_voices(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainParams(**TINY | settings)


def voice(decoder: str, **settings: Any) -> VoiceModel:
    config = {"kind": "voice", "inputs": 4, "outputs": 4, "layers": 2, "units": 8, "symbols": ["", " ", "a", "b"]}
    more = {"voices": ["x", "y"], "languages": ["en"], "decoder": decoder, "decoder_layers": 2}
    made = build({**config, **more, **settings}, seed=1)
    assert isinstance(made, VoiceModel)
    return made


def targets(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Mels, lengths and targets of utterances of 2, 3, … phones."""
    g = torch.Generator().manual_seed(seed)
    phones = torch.zeros(rows, rows + 1, dtype=torch.int64)
    durations = torch.zeros_like(phones)
    for b in range(rows):
        phones[b, : b + 2] = torch.randint(1, 4, (b + 2,), generator=g)
        durations[b, : b + 2] = torch.randint(1, 5, (b + 2,), generator=g)
    lengths = durations.sum(1)
    pitch, energy = (torch.randn(phones.shape, generator=g) for _ in range(2))
    mels = torch.randn((rows, int(lengths.max()), 4), generator=g)
    which = torch.arange(rows) % 2
    return mels, lengths, {
        **{"phones": phones, "durations": durations, "pitch": pitch, "energy": energy},
        **{"voices": which, "languages": torch.zeros(rows, dtype=torch.int64)},
    }  # fmt: skip


def test_the_loss_of_an_utterance_does_not_depend_on_the_others() -> None:
    module, (mels, lengths, wanted) = voice("fast"), targets(3)
    together = module(mels, lengths, None, wanted)
    phones = int((wanted["phones"][0] > 0).sum())
    own = {name: value[:1, :phones] if value.dim() == 2 else value[:1] for name, value in wanted.items()}
    alone = module(mels[:1, : lengths[0]], lengths[:1], None, own)
    assert alone.item() == pytest.approx(together[0].item(), rel=1e-5)


@pytest.mark.parametrize("decoder", ["fast", "flow"])
def test_every_weight_learns(decoder: str) -> None:
    module, (mels, lengths, wanted) = voice(decoder), targets(3)
    module(mels, lengths, torch.Generator().manual_seed(1), wanted).sum().backward()
    assert [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_frames_know_their_phone_and_their_place_in_it() -> None:
    module = voice("fast")
    h = torch.eye(8)[None, :3]
    x = module.frames(h, torch.zeros(1, 3, 2), torch.tensor([[2, 0, 3]]), 5)
    base = module.sounding.bias
    place = module.place(torch.tensor([[0.0, 0.0, np.log(2)], [0.5, np.log(2), 0.0]], dtype=torch.float32))
    assert torch.allclose(x[0, 0], h[0, 0] + base + place[0], atol=1e-6)
    assert torch.allclose(x[0, 1], h[0, 0] + base + place[1], atol=1e-6)
    assert torch.allclose(x[0, 2] - x[0, 0], h[0, 2] - h[0, 0] + module.place.weight[:, 2] * np.log(1.5), atol=1e-6)


def test_pace_and_given_durations() -> None:
    module = voice("flow")
    phones, who = torch.tensor([[1, 2, 3, 1]]), torch.tensor([0])
    mel, own = module.speak(phones, who, who, steps=2, generator=torch.Generator().manual_seed(0))
    again, _ = module.speak(phones, who, who, steps=2, generator=torch.Generator().manual_seed(0))
    assert mel.shape == (1, int(own.sum()), 4)
    assert torch.equal(mel, again)
    given = torch.tensor([[3, 1, 4, 1]])
    assert module.speak(phones, who, who, durations=given)[0].shape[1] == 9
    other = torch.tensor([1])
    assert not torch.equal(module.speak(phones, other, who, durations=given, spread=0)[0],
                           module.speak(phones, who, who, durations=given, spread=0)[0])  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [{"symbols": ["a", "a", "b"]}, {"decoder": "loud"}, {"voices": []}, {"rules": ["it"]}, {"decoder_layers": 10**6}],
)
def test_a_configuration_that_is_no_voice(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        voice("flow", **wrong) if "decoder" not in wrong else voice(wrong["decoder"])


def speaker(made: Path) -> Speaker:
    return Speaker(str(made / "model"), lexicon=read_lexicon(LEXICON))


def test_speech(made: Path) -> None:
    own = speaker(made)
    reader = own.reader()
    first, second = own.say("ab, ba. a xyz", Manner(), reader)
    assert own.rate_hz == 8_000
    assert len(first.samples) == 80 * (sum(first.frames) - 1) + round(0.25 * 8_000)
    assert np.abs(first.samples).max() <= 1
    assert second.piece.text == "a"
    assert reader.left_out == {"no-pronunciation": 1}
    again, _ = own.say("ab, ba. a", Manner())
    assert np.array_equal(first.samples, again.samples)


def test_a_speaker_that_is_not_there(made: Path) -> None:
    with pytest.raises(ConfigError, match="'eve' is not one of the model's voices"):
        list(speaker(made).say("a", Manner(speaker="eve")))


def test_an_address_without_a_voice_is_named_before_the_precision(made: Path) -> None:
    """A bundle that is not there was called a model that speaks only in fp32."""
    with pytest.raises(ConfigError, match="nothing: neither a voice nor a run"):
        speaker_at(str(made / "nothing"), None, 1, "int8")
    with pytest.raises(ConfigError, match=r"export-model \S+/model --precisions '\[int8\]' --out BUNDLE"):
        speaker_at(str(made / "model"), read_lexicon(LEXICON), 1, "int8")
    with pytest.raises(ConfigError, match="use one of fp32, fp16, int8"):
        speaker_at(str(made / "model"), read_lexicon(LEXICON), 1, "loud")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "no finished model, so no vocoder"),
        ("data", "an artifact of stage tts-data, not a vocoder"),
        ("model", "a model of kind voice, not vocoder"),
    ],
)
def test_what_is_no_vocoder_is_named(made: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: {said}\nRemedy: give a model of `train` with kind: vocoder"):
        speaker_at(str(made / "model"), read_lexicon(LEXICON), 1, vocoder=str(made / name))


def test_a_voice_does_not_hear(made: Path) -> None:
    with pytest.raises(ConfigError, match="a voice, not a recogniser"):
        load(str(made / "model"))


def test_the_command(made: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(LEXICON)
    out = tmp_path / "said.wav"
    options = ["--voice", str(made / "model"), "--lexicon", str(tmp_path / "words.txt"), "--out", str(out)]
    done = CliRunner().invoke(app, ["say", "ab ba", *options])
    assert done.exit_code == 0, done.output
    with soundfile.SoundFile(out) as file:
        assert (file.samplerate, file.channels) == (8_000, 1)
        assert "synthetic" in file.comment
        assert file.frames > 1000
    before = out.read_bytes()
    for nothing in ("zzz", '<speak><p>zzz</p><break time="1s"/></speak>'):
        refused = CliRunner().invoke(app, ["say", nothing, *options])
        assert refused.exit_code
        assert "nothing in the text can be spoken" in str(refused.exception) + refused.output
    signs = CliRunner().invoke(app, ["say", "☃", *options])
    assert "signs without words: ☃" in str(signs.exception) + signs.output
    for option in ("--pace", "--semitones", "--spread"):
        refused = CliRunner().invoke(app, ["say", "ab", *options, option, "nan"])
        assert (refused.exit_code, "nan is not a finite number" in refused.output) == (2, True)
    assert out.read_bytes() == before


def test_a_long_text_shows_how_much_is_spoken(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.runner.progress.LINE_EVERY_S", -1.0)
    (tmp_path / "words.txt").write_text(LEXICON)
    options = ["--voice", str(made / "model"), "--lexicon", str(tmp_path / "words.txt")]
    done = CliRunner().invoke(app, ["say", "ab ba. ba ab. ab ab.", *options, "--out", str(tmp_path / "said.wav")])
    shown = re.findall(r"say: (\d+)/20 characters", done.output)
    assert 2 <= len(shown) <= 3, done.output
    assert sorted(shown, key=int) == shown


def test_spoken_texts_are_utterances_and_have_scores(made: Path, tmp_path: Path) -> None:
    lexicon = write_artifact(tmp_path / "lexicon", [({}, {".lexicon.txt": LEXICON.encode()})], {})
    inputs = {"texts": Artifact(made / "selection"), "voice": Artifact(made / "model"), "lexicon": lexicon}
    said = ran(Speak(), SpeakParams(pace=(0.5, 0.6)), inputs, tmp_path / "said")
    rows = said.read_table(0).to_pylist()
    assert [row["text"] for row in rows] == TEXTS
    voice = inputs["voice"].manifest.digest
    assert [row["key"] for row in rows] == [key_of("speak", 0, voice, row["recording"]) for row in rows]
    assert {row["attribution"] for row in rows} == {"synthetic speech, made by megahour"}
    with said.open(0, ".tar") as tar:
        tar.seek(rows[2]["offset"])
        sound, rate_hz = soundfile.read(io.BytesIO(tar.read(rows[2]["size"])))
    assert (len(sound), rate_hz) == (rows[2]["samples"], 8_000)
    hook = tmp_path / "ear.py"
    hook.write_text("def hear(samples, rate_hz):\n    assert rate_hz == 8000\n    return 'ab'\n")
    scored = ran(
        ScoreSpeech(),
        ScoreSpeechParams(recogniser=f"{hook}:hear"),
        {"speech": said, "reference": Artifact(made / "utterances")},
        tmp_path / "scored",
    )
    words = sum(len(text.split()) for text in TEXTS)
    found = scored.summary
    assert found["utterances"] == len(TEXTS)
    assert found["words"] == words
    errors = scored.read_table(0)["errors"].to_pylist()
    assert errors == [len(text.split()) - ("ab" in text.split()) for text in TEXTS]
    assert found["wer"]["mean"] == pytest.approx(100 * sum(errors) / words, abs=0.01)
    assert found["wer"]["interval"][0] < found["wer"]["mean"] < found["wer"]["interval"][1]
    assert found["mcd_db"]["mean"] > 0
    inputs = {"speech": said, "reference": said, "training": said}
    own = ran(ScoreSpeech(), ScoreSpeechParams(), inputs, tmp_path / "own")
    assert pc.max(own.read_table(0)["mcd_db"]).as_py() == 0
    assert own.summary["nearest_mcd_db"]["mean"] > 0, "of another text"
    assert own.summary["pesq"]["mean"] > 4.4
    assert json.dumps(own.summary)
