"""ESPnet2's recognisers with a CTC head, imported as aligners: ESPnet's own posteriors, and clear errors."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from formula_weights import filled, sound
from imported_aligners import heard, imported

from megahour.core.config import parse
from megahour.core.errors import MegahourError
from megahour.foreign.espnet_encoder import EspnetCtc
from megahour.foreign.espnet_settings import settings_of
from megahour.foreign.params import ImportAlignerParams

TOKENS = ["<blank>", "<unk>", "▁a", *"bcdef", "<sos/eos>"]
FRONT_8K = {"fs": "8k", "n_fft": 256, "hop_length": 64, "n_mels": 16}
FRONT_16K = {"fs": 16000, "n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 16, "window": "hamming"}
SMALL = {"output_size": 16, "attention_heads": 2, "linear_units": 32, "num_blocks": 2}
CONFORMER = {**SMALL, "macaron_style": True, "cnn_module_kernel": 7, "rel_pos_type": "latest", "dropout_rate": 0.1}
BRANCHES = {**SMALL, "cgmlp_linear_units": 32, "cgmlp_conv_kernel": 7, "use_ffn": True, "macaron_ffn": True}


def config(encoder: str = "conformer", settings: Any = None, **changed: Any) -> dict[str, Any]:
    """`config.yaml` as ESPnet writes it, as far as it concerns the network."""
    return {
        "token_list": TOKENS,
        "frontend": "default",
        "frontend_conf": FRONT_8K,
        "specaug": None,
        "normalize": "utterance_mvn",
        "normalize_conf": {},
        "preencoder": None,
        "preencoder_conf": {},
        "encoder": encoder,
        "encoder_conf": {"transformer": SMALL, "conformer": CONFORMER, "e_branchformer": BRANCHES}[encoder]
        | (settings or {}),
        "postencoder": None,
        "postencoder_conf": {},
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 2, "linear_units": 16, "num_blocks": 1},
        "ctc_conf": {},
        "model": "espnet",
        "model_conf": {"ctc_weight": 0.3},
        "input_size": None,
        "init": None,
        **changed,
    }


def weights(about: dict[str, Any]) -> dict[str, torch.Tensor]:
    """ESPnet's names with values by formulas; the filters are triangles."""
    module = EspnetCtc(**settings_of(about, "here"), outputs=len(about["token_list"]))
    state = {theirs_of(name, about): values for name, values in module.state_dict().items()}
    made = filled(
        {n: v.shape for n, v in state.items() if n.startswith(("encoder.", "ctc.")) and v.is_floating_point()}
    )
    bins, mels = state["frontend.logmel.melmat"].shape
    places = torch.arange(bins)[:, None] * (mels / bins) - torch.arange(mels)
    made["frontend.logmel.melmat"] = (1 - places.abs()).clamp(min=0) / 10
    if "normalize.mean" in state:
        made |= {"normalize.mean": torch.linspace(-4, -1, mels), "normalize.std": torch.linspace(1, 2, mels)}
    return state | made | {"decoder.embed.0.weight": torch.zeros(9, 16)}


def theirs_of(name: str, about: dict[str, Any]) -> str:
    if about["encoder"] == "transformer":
        name = name.replace(".norm_mha.", ".norm1.").replace(".norm_ff.", ".norm2.")
    if about["encoder_conf"].get("input_layer") != "conv2d8":
        name = name.replace(".embed.out.", ".embed.out.0.")
    return name


def packed(folder: Path, about: dict[str, Any] | None = None, values: Any = None) -> Path:
    """A model's folder, as ESPnet's repositories on Hugging Face have it."""
    about = about or config()
    (folder / "exp" / "asr").mkdir(parents=True)
    (folder / "exp" / "asr" / "config.yaml").write_text(yaml.safe_dump(about))
    torch.save(values if values is not None else weights(about), folder / "exp" / "asr" / "valid.acc.ave.pth")
    files = {"files": {"asr_model_file": "exp/asr/valid.acc.ave.pth"}}
    (folder / "meta.yaml").write_text(
        yaml.safe_dump(files | {"yaml_files": {"asr_train_config": "exp/asr/config.yaml"}})
    )
    return folder


GLOBAL = {"normalize": "global_mvn", "normalize_conf": {"stats_file": "exp/stats/feats_stats.npz"}}
CASES: dict[str, dict[str, Any]] = {
    "conformer": config(**GLOBAL),
    "older": config(settings={"rel_pos_type": "legacy", "macaron_style": False, "input_layer": "conv2d8"}),
    "transformer": config("transformer", frontend_conf=FRONT_16K, normalize_conf={"norm_vars": True}),
    "absolute": config(
        settings={"pos_enc_layer_type": "abs_pos", "selfattention_layer_type": "selfattn", "normalize_before": False}
    ),
    "branches": config("e_branchformer", {"input_layer": "conv2d6"}),
}
BY_ESPNET: dict[str, dict[int, list[float]]] = {
    "conformer": {
        0: [-3.1650, -2.0063, -3.6185, -1.1364, -2.3602, -1.4826, -3.6969, -2.3713, -3.3271],
        29: [-3.2481, -1.9926, -3.8244, -1.2130, -2.4725, -1.2205, -4.1359, -2.5750, -3.3786],
        58: [-3.5439, -1.7698, -3.8720, -0.8062, -2.6077, -1.9589, -3.4878, -2.7193, -3.8095],
    },
    "older": {
        0: [-1.0012, -1.9777, -3.1111, -1.5743, -3.0174, -2.4900, -4.2634, -3.0723, -2.9907],
        14: [-1.1266, -1.7610, -3.3485, -1.4603, -3.0006, -2.7552, -4.0220, -3.1028, -2.8052],
        28: [-1.3195, -1.5513, -3.4403, -1.3829, -3.0369, -2.8877, -3.8156, -3.2259, -2.6251],
    },
    "transformer": {
        0: [-0.6744, -4.8679, -4.2725, -0.9792, -4.3476, -2.9092, -5.2076, -4.6863, -4.4984],
        11: [-0.9830, -4.0155, -4.6531, -0.7611, -3.4925, -4.0647, -4.2146, -3.0000, -3.9667],
        22: [-1.1486, -4.1096, -4.6214, -0.6353, -3.4220, -4.2489, -3.9071, -3.2324, -3.8912],
    },
    "absolute": {
        0: [-0.9101, -2.7762, -3.2989, -2.1079, -3.7061, -3.6691, -5.4613, -3.7980, -1.2036],
        29: [-1.2041, -1.6054, -2.7949, -2.8362, -4.1566, -4.0551, -4.2449, -4.0306, -1.1572],
        58: [-1.4826, -1.3067, -3.6432, -2.5180, -3.6016, -4.2874, -3.9286, -4.1180, -1.1442],
    },
    "branches": {
        0: [-0.7251, -4.7823, -2.4381, -2.3054, -2.7863, -1.7510, -4.8258, -3.2646, -3.2490],
        19: [-1.6472, -2.0965, -3.9023, -2.9238, -2.1177, -2.2237, -4.6626, -3.2655, -1.0953],
        38: [-1.8440, -1.6423, -4.4277, -2.1884, -1.9909, -2.0505, -4.9224, -2.7752, -1.6640],
    },
}
"""Some frames of log posteriors of ESPnet 202511 for these files (`build_model_from_file`, `encode`, `ctc`)."""


def samples() -> np.ndarray:
    """Nothing, then a sweep."""
    return np.concatenate([np.zeros(5120, np.float32), sound(10_240)])


@pytest.mark.parametrize("case", list(CASES))
def test_the_posteriors_are_those_of_espnet(tmp_path: Path, case: str) -> None:
    model = imported(tmp_path / "model", model=packed(tmp_path / "source", CASES[case]))
    about = json.loads(model.read_bytes(0, ".model.json"))
    assert about["tokens"] == TOKENS
    assert about["audio"]["rate_hz"] == (16_000 if case == "transformer" else 8_000)
    got = heard(model, samples())
    for frame, due in BY_ESPNET[case].items():
        np.testing.assert_allclose(got[frame], due, atol=2e-4)


def zipped(source: Path, path: Path) -> Path:
    shutil.make_archive(str(path.with_suffix("")), "zip", source)
    return path


def test_the_zip_the_folder_and_the_weights_are_one_model(tmp_path: Path) -> None:
    source = packed(tmp_path / "source")
    models = [source, zipped(source, tmp_path / "packed.zip"), source / "exp" / "asr" / "valid.acc.ave.pth"]
    data = {imported(tmp_path / f"model{i}", model=each).read_bytes(0, ".safetensors") for i, each in enumerate(models)}
    assert len(data) == 1


def test_a_config_of_the_hub_beside_it_does_not_matter(tmp_path: Path) -> None:
    source = packed(tmp_path / "source")
    (source / "config.json").write_text('{"library_name": "espnet"}')
    assert imported(tmp_path / "model", model=source).complete
    (source / "config.json").write_text('{"model_type": "wav2vec2"}')  # a checkpoint of transformers
    with pytest.raises(MegahourError, match="settings of the feature extractor"):
        imported(tmp_path / "none", model=source)


def test_a_model_in_half_precision_is_used_in_single(tmp_path: Path) -> None:
    halves = {
        name: values.half() if values.is_floating_point() else values for name, values in weights(config()).items()
    }
    model = imported(tmp_path / "model", model=packed(tmp_path / "source", values=halves))
    assert np.isfinite(heard(model, sound(15_360))).all()


def test_a_sound_of_too_few_samples_has_no_frames(tmp_path: Path) -> None:
    """As the last window of a recording may be."""
    model = imported(tmp_path / "model", model=packed(tmp_path / "source"))
    assert heard(model, sound(256)).shape == (0, len(TOKENS))
    assert len(heard(model, sound(512))) == 1


def test_other_weights_in_the_folder_are_another_job(tmp_path: Path) -> None:
    source = packed(tmp_path / "source")
    p = parse(ImportAlignerParams, {"model": str(source)}, where="import-aligner")
    before = p.identity()
    torch.save(weights(config()) | {"more": torch.zeros(3)}, source / "exp" / "asr" / "valid.acc.ave.pth")
    assert p.identity() != before


def test_other_settings_beside_the_weights_are_another_job(tmp_path: Path) -> None:
    """Which would else be the old aligner, with the old tokens."""
    source = packed(tmp_path / "source") / "exp" / "asr"
    p = parse(ImportAlignerParams, {"model": str(source / "valid.acc.ave.pth")}, where="import-aligner")
    before = p.identity()
    (source / "config.yaml").write_text(yaml.safe_dump(config(token_list=TOKENS[::-1])))
    assert p.identity() != before


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"encoder": "contextual_block_conformer"}, "encoder is 'contextual_block.*transformer or conformer"),
        ({"frontend": "s3prl"}, "frontend is 's3prl'; the import computes default"),
        ({"preencoder": "linear"}, "preencoder is 'linear'"),
        ({"frontend_conf": {**FRONT_8K, "frontend_conf": {"use_wpe": True}}}, "frontend_conf.frontend_conf"),
        ({"frontend_conf": {**FRONT_8K, "log_base": 10}}, "frontend_conf.log_base is '10'"),
        ({"frontend_conf": {**FRONT_8K, "hop_length": 0}}, "hop_length is '0', not 1"),
        ({"frontend_conf": {**FRONT_8K, "fs": "fast"}}, "fs is 'fast', not a rate"),
        ({"frontend_conf": {**FRONT_8K, "n_fft": 512}}, "weights do not fit.*melmat"),
        ({"frontend_conf": [1]}, "frontend_conf is .* no map"),
        ({"encoder_conf": {**CONFORMER, "num_blocks": 10**9}}, "num_blocks is '1000000000'"),
        ({"encoder_conf": {**CONFORMER, "num_blocks": 3}}, "weights do not fit"),
        ({"encoder_conf": {**CONFORMER, "num_blocks": 1}}, "weights do not fit"),
        ({"encoder_conf": {**CONFORMER, "interctc_use_conditioning": True}}, "interctc_use_conditioning is 'True'"),
        ({"encoder_conf": {**CONFORMER, "look_ahead": 3}}, "encoder_conf.look_ahead"),
        ({"encoder_conf": {**CONFORMER, "pos_enc_layer_type": "conv"}}, "pos_enc_layer_type with its attention"),
        ({"encoder_conf": {**CONFORMER, "macaron_style": "yes"}}, "macaron_style is 'yes', not true or false"),
        ({"encoder_conf": {**CONFORMER, "input_layer": ["conv2d"]}}, "input_layer"),
        ({"model_conf": {"ctc_weight": 0.0}}, "no CTC head"),
        ({"speech_volume_normalize": 1.0, **GLOBAL}, "speech_volume_normalize is '1.0'"),
        (GLOBAL, "weights do not fit.*normalize.mean"),
        ({"token_list": [*TOKENS[:-1], "b"]}, "'b' more than once"),
        ({"token_list": TOKENS[1:]}, "no blank '<blank>'"),
        ({"token_list": [*TOKENS, "g"]}, "weights do not fit.*ctc_lo"),
        ({"encoder": ["conformer"]}, "encoder is"),
        ({"model_conf": None, "encoder_conf": {**CONFORMER, "linear_units": None}}, "linear_units is 'None', not 1"),
        ({"token_type": "phn"}, "token_type is 'phn': the tokens are no letters.*bpe or char"),
        ({"token_type": "word"}, "token_type is 'word'"),
        ({"token_list": "data/tokens.txt"}, "not a list of tokens"),
    ],
)
def test_what_the_import_does_not_compute_is_named(tmp_path: Path, changed: Any, says: str) -> None:
    source = packed(tmp_path / "source", config() | changed, weights(config()))
    with pytest.raises(MegahourError, match=f"(?s){says}"):
        imported(tmp_path / "model", model=source)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("meta.yaml", b"files: {}", "has no yaml_files.asr_train_config"),
        ("meta.yaml", b"yaml_files: {asr_train_config: ../secret}", "asr_train_config of meta.yaml is '../secret'"),
        ("meta.yaml", b"yaml_files: {asr_train_config: /etc/passwd}", "asr_train_config of meta.yaml is '/etc/passwd'"),
        ("meta.yaml", b"- 1", "meta.yaml is no map"),
        ("exp/asr/config.yaml", b"a: !!python/object/apply:os.getcwd []", "config.yaml is not YAML"),
        ("exp/asr/config.yaml", None, "no such file|no exp/asr/config.yaml"),
        ("exp/asr/valid.acc.ave.pth", b"version https://git-lfs", "does not hold tensors only"),
        ("exp/asr/valid.acc.ave.pth", None, "no such file|no exp/asr/valid.acc.ave.pth"),
    ],
)
@pytest.mark.parametrize("as_zip", [False, True])
def test_damaged_and_missing_files_are_named(
    tmp_path: Path, name: str, content: bytes | None, says: str, as_zip: bool
) -> None:
    source = packed(tmp_path / "source")
    if content is None:
        (source / name).unlink()
    else:
        (source / name).write_bytes(content)
    with pytest.raises(MegahourError, match=says):
        imported(tmp_path / "model", model=zipped(source, tmp_path / "a.zip") if as_zip else source)


def test_weights_that_would_run_something_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "was-run").touch, ())

    source = packed(tmp_path / "source", values=weights(config()) | {"encoder.more": Evil()})
    with pytest.raises(MegahourError, match="does not hold tensors only"):
        imported(tmp_path / "model", model=source)
    assert not (tmp_path / "was-run").exists()


def test_a_checkpoint_of_the_training_is_refused(tmp_path: Path) -> None:
    source = packed(tmp_path / "source", values={"model": weights(config()), "optimizers": [{}]})
    with pytest.raises(MegahourError, match=r"(?s)not a map.*not a checkpoint of the training"):
        imported(tmp_path / "model", model=source)


def test_a_zip_that_would_unpack_to_much_more_is_refused(tmp_path: Path) -> None:
    source = packed(tmp_path / "source")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("weights/data.pkl", bytes(1 << 22))
    (source / "exp" / "asr" / "valid.acc.ave.pth").write_bytes(data.getvalue())
    with pytest.raises(MegahourError, match="would unpack to 4194304"):
        imported(tmp_path / "model", model=zipped(source, tmp_path / "a.zip"))
    (tmp_path / "b.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:-40])
    with pytest.raises(MegahourError, match=r"the \.zip cannot be read"):
        imported(tmp_path / "model", model=tmp_path / "b.zip")
