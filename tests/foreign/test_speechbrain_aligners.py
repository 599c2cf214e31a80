"""SpeechBrain's recognisers of wav2vec 2.0 and CTC, imported as aligners: its own posteriors, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formula_weights import filled, sound
from imported_aligners import heard, imported
from imported_later import ImportedLater

from megahour.core.errors import MegahourError

transformers: Any = ImportedLater("transformers")  # which loads each class when it is first used, in seconds
WAVES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (8,) * 7,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}
LABELS = """'<blank>' => 0
'a' => 1
'b' => 2
' ' => 3
"'" => 4
================
'starting_index' => 0
'blank_label' => '<blank>'
"""
SEQUENTIAL = """enc: !new:speechbrain.nnet.containers.Sequential
    input_shape: [null, null, !ref <wav2vec_output_dim>]
    linear1: !name:speechbrain.nnet.linear.Linear
        n_neurons: !ref <dnn_neurons>
        bias: True
    bn1: !name:speechbrain.nnet.normalization.BatchNorm1d
    activation: !new:torch.nn.LeakyReLU
    drop: !new:torch.nn.Dropout
        p: 0.15
    linear2: !name:speechbrain.nnet.linear.Linear
        n_neurons: !ref <dnn_neurons>
        bias: True
    activation2: !new:torch.nn.LeakyReLU
asr_model: !new:torch.nn.ModuleList
    - [!ref <enc>, !ref <ctc_lin>]
pretrainer: !new:speechbrain.utils.parameter_transfer.Pretrainer
    loadables:
        wav2vec2: !ref <wav2vec2>
        asr: !ref <asr_model>
        tokenizer: !ref <tokenizer>
"""
VANILLA = """activation: !name:torch.nn.LeakyReLU
enc: !new:speechbrain.lobes.models.VanillaNN.VanillaNN
    input_shape: [null, null, !ref <wav2vec_output_dim>]
    activation: !ref <activation>
    dnn_blocks: 2
    dnn_neurons: !ref <dnn_neurons>
pretrainer: !new:speechbrain.utils.parameter_transfer.Pretrainer
    loadables:
        wav2vec2: !ref <wav2vec2>
        enc: !ref <enc>
        ctc_lin: !ref <ctc_lin>
        tokenizer: !ref <tokenizer>
"""
SETTINGS = """# Made as SpeechBrain's recipes make it
seed: 1234
__set_seed: !apply:torch.manual_seed [!ref <seed>]
sample_rate: 16000
blank_index: 0
wav2vec2_hub: facebook/wav2vec2-large-lv60
wav2vec_output_dim: 16
dnn_neurons: 12
wav2vec2: !new:speechbrain.integrations.huggingface.wav2vec2.Wav2Vec2
    source: !ref <wav2vec2_hub>
    output_norm: OUTPUT_NORM
    freeze: True
    save_path: wav2vec2_checkpoint
ctc_lin: !new:speechbrain.nnet.linear.Linear
    input_size: !ref <dnn_neurons>
    n_neurons: 5
log_softmax: !new:speechbrain.nnet.activations.Softmax
    apply_log: True
tokenizer: !new:speechbrain.dataio.encoder.CTCTextEncoder
encoder: !new:speechbrain.nnet.containers.LengthsCapableSequential
    wav2vec2: !ref <wav2vec2>
    enc: !ref <enc>
    ctc_lin: !ref <ctc_lin>
    log_softmax: !ref <log_softmax>
modules:
    encoder: !ref <encoder>
decoding_function: !name:speechbrain.decoders.ctc_greedy_decode
    blank_id: !ref <blank_index>
"""
CASES = {
    "sequential": SETTINGS.replace("OUTPUT_NORM", "False") + SEQUENTIAL,
    "vanilla": SETTINGS.replace("OUTPUT_NORM", "True") + VANILLA,
}


def made(folder: Path, text: str) -> Path:
    """A folder as SpeechBrain's repositories are, with the settings of wav2vec 2.0 beside it."""
    (folder / "wav2vec2").mkdir(parents=True)
    (folder / "hyperparams.yaml").write_text(text)
    (folder / "config.json").write_text('{"speechbrain_interface": "EncoderASR"}')
    (folder / "tokenizer.ckpt").write_text(LABELS)
    config = transformers.Wav2Vec2Config(**WAVES)
    config.save_pretrained(folder / "wav2vec2")
    transformers.Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder / "wav2vec2")
    shapes = {name: each.shape for name, each in transformers.Wav2Vec2Model(config).state_dict().items()}
    torch.save({f"model.{name}": each for name, each in filled(shapes).items()}, folder / "wav2vec2.ckpt")
    save_head(folder, text)
    return folder


def save_head(folder: Path, text: str) -> None:
    ctc = {"w.weight": (5, 12), "w.bias": (5,)}
    if "VanillaNN" in text:
        enc = {"linear.w.weight": (12, 16), "linear.w.bias": (12,)}
        enc |= {"linear_0.w.weight": (12, 12), "linear_0.w.bias": (12,)}
        torch.save(filled(enc), folder / "enc.ckpt")
        torch.save(filled(ctc), folder / "ctc_lin.ckpt")
        return
    enc = {"linear1.w.weight": (12, 16), "linear1.w.bias": (12,)}
    enc |= {f"bn1.norm.{name}": (12,) for name in ("weight", "bias", "running_mean", "running_var")}
    enc |= {"linear2.w.weight": (12, 12), "linear2.w.bias": (12,)}
    weights = filled({f"0.{name}": shape for name, shape in enc.items()} | {f"1.{n}": s for n, s in ctc.items()})
    torch.save(weights | {"0.bn1.norm.num_batches_tracked": torch.tensor(7)}, folder / "asr.ckpt")


BY_SPEECHBRAIN: dict[str, dict[int, list[float]]] = {
    "sequential": {
        0: [-3.6395, -1.6896, -2.0754, -0.4308, -4.2964],
        14: [-4.1649, -2.0523, -1.9576, -0.3597, -4.0776],
        28: [-3.6042, -1.8324, -1.9320, -0.4224, -4.3877],
    },
    "vanilla": {
        0: [-1.5340, -1.6023, -1.6304, -2.3827, -1.2217],
        14: [-1.4492, -1.6615, -1.7566, -2.3017, -1.1951],
        28: [-1.5229, -1.5754, -1.6868, -2.3433, -1.2246],
    },
}
"""Some frames of log posteriors of SpeechBrain 1.1.2 for these files (`EncoderASR.from_hparams`, `encode_batch`)."""


@pytest.mark.parametrize("case", list(CASES))
def test_the_posteriors_are_those_of_speechbrain(tmp_path: Path, case: str) -> None:
    model = imported(tmp_path / "model", model=made(tmp_path / "source", CASES[case]))
    about = json.loads(model.read_bytes(0, ".model.json"))
    assert about["tokens"] == ["<blank>", "a", "b", " ", "'"]
    assert about["audio"]["frame_shift_samples"] == 320
    got = heard(model, sound(9_600))
    for frame, due in BY_SPEECHBRAIN[case].items():
        np.testing.assert_allclose(got[frame], due, atol=2e-4)


def test_pieces_of_sentencepiece_are_the_tokens(tmp_path: Path) -> None:
    """The blank is its first piece, <unk>, as in the recipes."""
    import sentencepiece

    source = made(tmp_path / "source", CASES["vanilla"])
    (tmp_path / "text").write_text("ab ba\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "p"),
        vocab_size=4,
        model_type="char",
        bos_id=-1,
        eos_id=-1,
    )
    (source / "tokenizer.ckpt").write_bytes((tmp_path / "p.model").read_bytes())
    with pytest.raises(MegahourError, match="5 outputs, but 4 tokens"):
        imported(tmp_path / "none", model=source)
    torch.save(filled({"w.weight": (4, 12), "w.bias": (4,)}), source / "ctc_lin.ckpt")
    model = imported(tmp_path / "model", model=source)
    tokens = json.loads(model.read_bytes(0, ".model.json"))["tokens"]
    assert tokens[0] == "<blank>"
    assert sorted(tokens[1:]) == [" ", "a", "b"]  # among characters, ▁ is the space


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Wav2Vec2\n", "Whisper\n", "wav2vec2 of hyperparams.yaml is 'Whisper'; the import computes Wav2Vec2"),
        ("output_norm: False", "output_all_hiddens: True\n    output_norm: False", "output_all_hiddens.*'True'"),
        ("    output_norm: False\n", "", "lacks wav2vec2.output_norm.*True in 2021"),
        ("torch.nn.LeakyReLU", "torch.nn.PReLU", "activation of .* is 'PReLU'"),
        (
            "!new:torch.nn.LeakyReLU",
            "!new:torch.nn.LeakyReLU\n        negative_slope: 0.2",
            "activation.negative_slope",
        ),
        ("nnet.linear.Linear", "nnet.RNN.LSTM", "is 'LSTM'; the import computes Linear"),
        ("containers.Sequential", "containers.ModuleDict", "enc .* is 'ModuleDict'"),
        ("        asr: !ref <asr_model>\n", "", "pretrainer.loadables of .* has no"),
        ("blank_index: 0", "blank_index: 9", "5 outputs, but 5 tokens, and blank_index 9"),
        ("sample_rate: 16000", "sample_rate: fast", "sampling rate is 'fast'"),
        ("wav2vec2: !ref <wav2vec2>", "wav2vec2: !ref <other>", "pretrainer.loadables of .* has no wav2vec2"),
        ("seed: 1234", "seed: [", "is not YAML"),
        ("seed: 1234", "? [a]\n: 1", "is not YAML"),
        ("blank_index: 0", "blank_index: !ref <blank_index>", "is a circle|'a circle'"),
    ],
)
def test_what_the_import_does_not_compute_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = CASES["sequential"]
    assert old in text
    source = made(tmp_path / "source", text)
    (source / "hyperparams.yaml").write_text(text.replace(old, new))
    with pytest.raises(MegahourError, match=f"(?s){says}"):
        imported(tmp_path / "model", model=source)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("wav2vec2/config.json", None, r"(?s)no settings of its wav2vec.*config\.json of facebook/wav2vec2-large-lv60"),
        ("wav2vec2/config.json", b'{"model_type": "whisper"}', "not a CTC model"),
        ("wav2vec2.ckpt", None, "no such file"),
        ("asr.ckpt", b"version https://git-lfs", "does not hold tensors only"),
        ("tokenizer.ckpt", b"nothing", "no sentencepiece model"),
        ("tokenizer.ckpt", b"'a' => 0\nb => 1\n", "tokenizer cannot be read"),
        ("tokenizer.ckpt", b"__import__('os').getcwd() => 0\n", "tokenizer cannot be read"),
        ("tokenizer.ckpt", b"'a' => 0\n'b' => 2\n", "not numbered"),
    ],
)
def test_damaged_and_missing_files_are_named(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    source = made(tmp_path / "source", CASES["sequential"])
    (source / name).unlink() if content is None else (source / name).write_bytes(content)
    with pytest.raises(MegahourError, match=says):
        imported(tmp_path / "model", model=source)


def test_weights_that_lack_a_layer_or_have_another_shape_are_refused(tmp_path: Path) -> None:
    source = made(tmp_path / "source", CASES["sequential"])
    weights = torch.load(source / "asr.ckpt")
    torch.save({n: w for n, w in weights.items() if "linear2" not in n}, source / "asr.ckpt")
    with pytest.raises(MegahourError, match="linear2 has no weights"):
        imported(tmp_path / "model", model=source)
    torch.save({n: w for n, w in weights.items() if "running_var" not in n}, source / "asr.ckpt")
    with pytest.raises(MegahourError, match=r"weights do not fit hyperparams\.yaml"):
        imported(tmp_path / "model", model=source)
    torch.save(weights | {"0.linear2.w.weight": torch.zeros(12, 13)}, source / "asr.ckpt")
    with pytest.raises(MegahourError, match="fails on 1 s of noise"):
        imported(tmp_path / "model", model=source)


def test_nothing_that_the_settings_name_is_run(tmp_path: Path) -> None:
    source = made(tmp_path / "source", CASES["vanilla"])
    evil = f"__evil: !apply:pathlib.Path.touch [!new:pathlib.Path [{tmp_path / 'was-run'}]]\n"
    (source / "hyperparams.yaml").write_text(evil + CASES["vanilla"])
    assert imported(tmp_path / "model", model=source).complete
    evil = f"__evil: !!python/object/apply:os.mkdir [{tmp_path / 'was-run'}]\n"
    (source / "hyperparams.yaml").write_text(evil + CASES["vanilla"])
    with pytest.raises(MegahourError, match="is not YAML"):  # Python's own tags have no meaning
        imported(tmp_path / "none", model=source)
    assert not (tmp_path / "was-run").exists()


def test_the_older_names_of_normalised_weights_are_read(tmp_path: Path) -> None:
    """Those of torch before 2.1, as in most public models."""
    source = made(tmp_path / "source", CASES["sequential"])
    due = heard(imported(tmp_path / "model", model=source), sound(9_600))
    weights = torch.load(source / "wav2vec2.ckpt")
    names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    older = {}
    for name, values in weights.items():
        for new, old in names.items():
            name = name.replace(new, old)
        older[name] = values
    assert set(older) != set(weights)
    torch.save(older, source / "wav2vec2.ckpt")
    np.testing.assert_array_equal(heard(imported(tmp_path / "older", model=source), sound(9_600)), due)


def test_weights_that_would_run_something_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "was-run").touch, ())

    source = made(tmp_path / "source", CASES["sequential"])
    torch.save({"model.more": Evil()}, source / "wav2vec2.ckpt")
    with pytest.raises(MegahourError, match="does not hold tensors only"):
        imported(tmp_path / "model", model=source)
    assert not (tmp_path / "was-run").exists()
