"""Checkpoints written by transformers, imported as aligners: same posteriors, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from imported_aligners import heard, imported
from imported_later import ImportedLater
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from megahour.core.errors import MegahourError
from megahour.foreign.aligner import likely_shift
from megahour.foreign.huggingface import Folder, _parts

transformers: Any = ImportedLater("transformers")  # which loads each class when it is first used, in seconds
TOKENS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFG"]
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "pad_token_id": 0,
}
WAVES = SMALL | {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
RATE_HZ = 16_000


def saved(folder: Path, model: Any, vocabulary: Any = None, **extractor: Any) -> Path:
    torch.manual_seed(3)
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    vocabulary = vocabulary or {token: i for i, token in enumerate(TOKENS)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    transformers.Wav2Vec2FeatureExtractor(**extractor).save_pretrained(folder)
    return folder


def wav2vec2(folder: Path, **extractor: Any) -> Path:
    return saved(
        folder, transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(vocab_size=len(TOKENS), **WAVES)), **extractor
    )


def noise(seconds: float = 1.5) -> np.ndarray:
    return np.random.default_rng(5).normal(0.02, 0.1, int(seconds * RATE_HZ)).astype(np.float32)


@pytest.mark.parametrize("normalises", [True, False])
def test_wav2vec2_gets_the_input_of_its_own_processor(tmp_path: Path, normalises: bool) -> None:
    source = wav2vec2(tmp_path / "source", do_normalize=normalises, sampling_rate=RATE_HZ)
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(source / "vocab.json"))
    processor = transformers.Wav2Vec2Processor(transformers.Wav2Vec2FeatureExtractor.from_pretrained(source), tokenizer)
    model = imported(tmp_path / "model", model=source)
    config = json.loads(model.read_bytes(0, ".model.json"))
    assert config["tokens"][:6] == ["<blank>", "<s>", "</s>", "<unk>", " ", "a"]
    assert config["audio"]["rate_hz"] == RATE_HZ
    assert config["audio"]["frame_shift_samples"] == 320
    samples = noise()
    with torch.inference_mode():
        given = processor(samples, sampling_rate=RATE_HZ, return_tensors="pt")
        due = transformers.Wav2Vec2ForCTC.from_pretrained(source).eval()(**given).logits[0].log_softmax(-1).numpy()
    np.testing.assert_allclose(heard(model, samples), due, atol=1e-5)


def test_weights_in_half_precision_are_used_in_single(tmp_path: Path) -> None:
    """Checkpoints for GPUs often have bf16 weights, and say so in `config.json`."""
    source = wav2vec2(tmp_path / "source")
    weights = {name: values.bfloat16() for name, values in load_file(source / "model.safetensors").items()}
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    broken(source, "config.json", lambda config: config.update(dtype="bfloat16"))
    model = imported(tmp_path / "model", model=source)
    whole = transformers.Wav2Vec2ForCTC.from_pretrained(source, dtype=torch.float32).eval()
    given = transformers.Wav2Vec2FeatureExtractor.from_pretrained(source)(
        noise(), sampling_rate=RATE_HZ, return_tensors="pt"
    )
    with torch.inference_mode():
        np.testing.assert_allclose(heard(model, noise()), whole(**given).logits[0].log_softmax(-1).numpy(), atol=1e-5)


def test_the_tokenizer_names_the_token_between_words(tmp_path: Path) -> None:
    source = wav2vec2(tmp_path / "source")
    (source / "tokenizer_config.json").write_text('{"word_delimiter_token": "<s>"}')
    model = imported(tmp_path / "model", model=source)
    assert json.loads(model.read_bytes(0, ".model.json"))["tokens"][:6] == ["<blank>", " ", "</s>", "<unk>", "|", "a"]


def test_hubert_in_several_files(tmp_path: Path) -> None:
    """Weights that `save_pretrained` split into several files are read as one model."""
    whole = transformers.HubertForCTC(transformers.HubertConfig(vocab_size=len(TOKENS), **WAVES))
    source = saved(tmp_path / "source", whole, sampling_rate=8_000)
    whole.save_pretrained(source, max_shard_size="10KB")
    assert not (source / "model.safetensors").exists() or (source / "model.safetensors").unlink() is None
    model = imported(tmp_path / "model", model=source)
    assert json.loads(model.read_bytes(0, ".model.json"))["audio"]["rate_hz"] == 8_000
    with torch.inference_mode():
        samples = noise()
        normal = torch.from_numpy((samples - samples.mean()) / np.sqrt(samples.var() + 1e-7))[None]
        due = whole.eval()(normal).logits[0].log_softmax(-1).numpy()
    np.testing.assert_allclose(heard(model, samples), due, atol=1e-4)


def test_a_whole_file_comes_before_one_in_parts(tmp_path: Path) -> None:
    """As transformers reads a folder in which a training in parts was replaced, or the reverse."""
    source = wav2vec2(tmp_path / "source")
    whole = transformers.Wav2Vec2ForCTC.from_pretrained(source).eval()
    weights = load_file(source / "model.safetensors")
    whole.save_pretrained(source, max_shard_size="10KB")
    save_file({name: 0.5 * values for name, values in weights.items()}, source / "model.safetensors", {"format": "pt"})
    assert len(_parts(Folder(str(source)))) == 1
    samples = noise()
    model = transformers.Wav2Vec2ForCTC.from_pretrained(source).eval()
    normal = torch.from_numpy((samples - samples.mean()) / np.sqrt(samples.var() + 1e-7))[None]
    with torch.inference_mode():
        due, other = (each(normal).logits[0].log_softmax(-1).numpy() for each in (model, whole))
    assert np.abs(due - other).max() > 0.01
    np.testing.assert_allclose(heard(imported(tmp_path / "model", model=source), samples), due, atol=1e-4)


def test_a_language_of_many_has_its_own_adapter_and_tokens(tmp_path: Path) -> None:
    """As MMS: one folder, an adapter and a list of tokens for each language."""
    config = transformers.Wav2Vec2Config(vocab_size=len(TOKENS), adapter_attn_dim=4, **WAVES)
    german = {token: i for i, token in enumerate([*TOKENS[:5], *"abcdefgö"])}
    whole = transformers.Wav2Vec2ForCTC(config)
    vocabulary = {"eng": {token: i for i, token in enumerate(TOKENS)}, "deu": german}
    source = saved(tmp_path / "source", whole, vocabulary)
    own = {name: torch.randn_like(values) for name, values in whole._get_adapters().items()}
    own["lm_head.weight"], own["lm_head.bias"] = torch.randn(13, 16), torch.randn(13)
    save_file(own, source / "adapter.deu.safetensors", {"format": "pt"})
    with pytest.raises(MegahourError, match=r"(?s)several languages, none for ''.*`language`.* deu, eng"):
        imported(tmp_path / "none", model=source)
    model = imported(tmp_path / "model", model=source, language="deu")
    assert json.loads(model.read_bytes(0, ".model.json"))["tokens"][-1] == "ö"
    due = transformers.Wav2Vec2ForCTC.from_pretrained(source, target_lang="deu", ignore_mismatched_sizes=True).eval()
    samples = noise()
    given = transformers.Wav2Vec2FeatureExtractor()(samples, sampling_rate=RATE_HZ, return_tensors="pt")
    with torch.inference_mode():
        np.testing.assert_allclose(heard(model, samples), due(**given).logits[0].log_softmax(-1).numpy(), atol=1e-5)


def test_a_model_of_filterbanks_has_its_own_extractor(tmp_path: Path) -> None:
    """wav2vec2-bert hears pairs of mel frames: its extractor makes them, so that nothing can be set wrongly."""
    whole = transformers.Wav2Vec2BertForCTC(
        transformers.Wav2Vec2BertConfig(vocab_size=len(TOKENS), feature_projection_input_dim=160, **SMALL)
    )
    source = saved(tmp_path / "source", whole)
    extractor = transformers.SeamlessM4TFeatureExtractor()
    extractor.save_pretrained(source)
    model = imported(tmp_path / "model", model=source)
    samples = noise()
    with torch.inference_mode():
        given = extractor(samples[: len(samples) // 320 * 320], sampling_rate=RATE_HZ, return_tensors="pt")
        due = whole.eval()(**given).logits[0].log_softmax(-1).numpy()
    np.testing.assert_allclose(heard(model, samples), due, atol=1e-4)


def test_parakeet_of_nemo_with_its_word_pieces(tmp_path: Path) -> None:
    """NVIDIA's Conformer as transformers has it: the blank is the last output, the tokens are in tokenizer.json."""
    pieces = ["<unk>", *(f"▁{letter}" for letter in "abcde"), *"abcde", "<pad>"]
    encoder = {**SMALL, "subsampling_conv_channels": 8, "pad_token_id": 11}
    config = transformers.ParakeetCTCConfig(vocab_size=12, pad_token_id=11, encoder_config=encoder)
    whole = transformers.ParakeetForCTC(config)
    source = saved(tmp_path / "source", whole)
    (source / "vocab.json").unlink()
    Tokenizer(WordLevel({piece: i for i, piece in enumerate(pieces)}, "<unk>")).save(str(source / "tokenizer.json"))
    extractor = transformers.ParakeetFeatureExtractor()
    extractor.save_pretrained(source)
    model = imported(tmp_path / "model", model=source)
    about = json.loads(model.read_bytes(0, ".model.json"))
    assert about["tokens"][:3] == ["<blank>", "<unk>", "▁a"]
    assert about["marks"]
    assert about["audio"]["frame_shift_samples"] == 1280
    samples = noise(3 * 0.64)
    with torch.inference_mode():
        given = extractor(samples, sampling_rate=RATE_HZ, return_tensors="pt")
        due = whole.eval()(**given).logits[0].log_softmax(-1).numpy()
    np.testing.assert_allclose(heard(model, samples), due[:24, about["order"]], atol=1e-4)  # the 25th is padding


def broken(source: Path, name: str, change: Any) -> None:
    values = json.loads((source / name).read_text())
    change(values)
    (source / name).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("spoil", "values", "says"),
    [
        (lambda s: (s / "model.safetensors").unlink(), {}, "no such file.*pytorch_model.bin.*to safetensors"),
        (lambda s: (s / "model.safetensors").write_bytes(b"\x80\x04pickle"), {}, "weights cannot be read"),
        (
            lambda s: (s / "preprocessor_config.json").unlink(),
            {},
            "no settings of the.*preprocessor_config",
        ),
        (lambda s: broken(s, "config.json", lambda c: c.update(model_type="whisper")), {}, "not a CTC model.*wav2vec2"),
        (lambda s: broken(s, "config.json", lambda c: c.update(hidden_size=32)), {}, "cannot build|other shapes"),
        (lambda s: broken(s, "config.json", lambda c: c.update(vocab_size=3)), {}, "12 tokens, but the model has 3"),
        (lambda s: broken(s, "vocab.json", lambda c: c.pop("G")), {}, "11 tokens, but .* 12 .*added_tokens"),
        (lambda s: broken(s, "vocab.json", lambda c: c.pop("A")), {}, "not numbered"),
        (lambda s: broken(s, "vocab.json", lambda c: c.update(Z=5)), {}, "'A' and 'Z' both have the number 5"),
        (lambda s: (s / "config.json").write_text("{"), {}, "not JSON"),
        (lambda s: broken(s, "config.json", lambda c: c.update(model_type=["wav2vec2"])), {}, "not a CTC model"),
        (lambda s: broken(s, "config.json", lambda c: c.update(num_hidden_layers=1)), {}, "fewer layers.*layers.1"),
        (lambda s: broken(s, "config.json", lambda c: c.update(num_hidden_layers=10**7)), {}, "10000000 layers, but"),
        (lambda s: broken(s, "config.json", lambda c: c.update(num_hidden_layers=0)), {}, "0 layers, but the file has"),
        (lambda s: broken(s, "preprocessor_config.json", lambda c: c.update(sampling_rate="16k")), {}, "'16k', not"),
        (lambda s: broken(s, "preprocessor_config.json", lambda c: c.update(sampling_rate=10**9)), {}, "to 192000"),
        (lambda s: None, {"rate_hz": 8000}, "rate_hz = 8000, but the checkpoint has 16000"),
        (lambda s: None, {"tokens": "tokens.txt"}, "has its own tokens"),
        (lambda s: None, {"language": "deu"}, "tokens of one language"),
        (lambda s: None, {"frame_shift_samples": 480}, "frame_shift_samples = 480.*probably 320"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(tmp_path: Path, spoil: Any, values: Any, says: str) -> None:
    source = wav2vec2(tmp_path / "source")
    spoil(source)
    with pytest.raises(MegahourError, match=f"(?s){says}"):
        imported(tmp_path / "model", model=source, **values)


def test_a_model_that_was_only_pretrained_is_refused(tmp_path: Path) -> None:
    """Its output layer would be random."""
    source = wav2vec2(tmp_path / "source")
    weights = {n: w for n, w in load_file(source / "model.safetensors").items() if not n.startswith("lm_head")}
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(MegahourError, match=r"(?s)missing.*lm_head.*fine-tuned with CTC"):
        imported(tmp_path / "model", model=source)


def test_a_model_of_phonemes_is_refused(tmp_path: Path) -> None:
    """Its tokens look like letters, and texts would be spelled with them."""
    source = wav2vec2(tmp_path / "source")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}')
    with pytest.raises(MegahourError, match="phonemes, which do not spell"):
        imported(tmp_path / "model", model=source)


def test_an_index_names_files_of_its_folder_only(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')
    with pytest.raises(MegahourError, match="in its folder"):
        _parts(Folder(str(tmp_path)))


@pytest.mark.parametrize(("frames", "shift"), [(67, 480), (66, 480), (100, 320), (99, 320), (25, 1280), (200, 160)])
def test_a_frame_shift_is_guessed_as_a_round_number(frames: int, shift: int) -> None:
    assert likely_shift(32_000, frames, RATE_HZ) == shift


def test_tokens_that_the_tokenizer_added_beyond_the_outputs_are_left_out(tmp_path: Path) -> None:
    """Wav2Vec2CTCTokenizer adds <s> and </s> to a list without them, as models fine-tuned on own letters have."""
    source = wav2vec2(tmp_path / "source")
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "|", *"abcdefghi"])}
    (tmp_path / "letters.json").write_text(json.dumps(vocabulary))
    signs = {"unk_token": "[UNK]", "pad_token": "[PAD]", "word_delimiter_token": "|"}
    transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "letters.json"), **signs).save_pretrained(source)
    assert json.loads((source / "added_tokens.json").read_text()) == {"<s>": 12, "</s>": 13}
    model = imported(tmp_path / "model", model=source)
    assert json.loads(model.read_bytes(0, ".model.json"))["tokens"] == ["<blank>", "[UNK]", " ", *"abcdefghi"]
