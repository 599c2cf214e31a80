"""NeMo's `.nemo` files, imported as aligners: the same network as NeMo's, and what differs is refused."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from formula_weights import filled, sound
from imported_aligners import heard, imported
from imported_later import ImportedLater

from megahour.core.errors import MegahourError
from megahour.foreign.model import ForeignModel
from megahour.foreign.nemo import NAMES
from megahour.foreign.nemo_striding import with_striding

transformers: Any = ImportedLater("transformers")  # which loads each class when it is first used, in seconds
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "subsampling_conv_channels": 8,
}
RATE_HZ = 16_000


def noise(seconds: float = 1.5) -> np.ndarray:
    return np.random.default_rng(5).normal(0.02, 0.1, int(seconds * RATE_HZ)).astype(np.float32)


def parakeet(*, older: bool = False, **encoder: Any) -> Any:
    config = transformers.ParakeetCTCConfig(vocab_size=6, pad_token_id=5, encoder_config={**SMALL, **encoder})
    kind = transformers.ParakeetForCTC
    return (with_striding(kind) if older else kind)(config).eval()


OLDER = {"subsampling_factor": 4, "conv_kernel_size": 31}
BY_NEMO = {
    ("dw_striding", 16_000): {
        0: [-0.7732, -6.1666, -4.8740, -0.7465, -3.0929, -4.6719],
        9: [-0.5476, -4.6858, -6.0596, -1.0926, -2.6695, -5.2138],
        31: [-0.4295, -7.0899, -3.7479, -1.3405, -3.8134, -3.1952],
    },
    ("dw_striding", 8_000): {
        0: [-0.6807, -6.5143, -4.3980, -0.8414, -3.4970, -3.9869],
        9: [-0.9880, -6.2961, -5.0990, -0.5424, -3.7514, -4.2075],
        31: [-0.5019, -3.8949, -5.6217, -1.3033, -2.5208, -3.9818],
    },
    ("striding", 16_000): {
        0: [-0.8244, -4.4108, -2.6897, -1.0798, -2.2528, -3.3049],
        9: [-0.8842, -5.1882, -1.9642, -1.4988, -2.3182, -2.1266],
        31: [-1.1010, -5.2436, -2.5208, -0.8430, -2.2052, -3.1907],
    },
    ("striding", 8_000): {
        0: [-0.8151, -4.3741, -2.7477, -1.0531, -2.2016, -3.8520],
        9: [-0.7307, -5.0173, -2.2271, -1.9864, -2.0412, -1.9882],
        31: [-0.6949, -5.7702, -2.6808, -1.1801, -2.8327, -2.7624],
    },
}
"""Some frames of log posteriors of NeMo 3.0.0 (EncDecCTCModel, read back from its own file), the blank last."""


@pytest.mark.parametrize(("subsampling", "rate_hz"), list(BY_NEMO))
@pytest.mark.parametrize("hybrid", [False, True])
def test_the_posteriors_are_those_of_nemo(tmp_path: Path, subsampling: str, rate_hz: int, hybrid: bool) -> None:
    older = OLDER if subsampling == "striding" else {}
    whole = parakeet(num_mel_bins=16, older=bool(older), **older)
    ours = {name: value for name, value in whole.state_dict().items() if value.is_floating_point()}
    names = {theirs_of(name): name for name in ours}
    made = filled({name: ours[own].shape for name, own in names.items()})
    weights = whole.state_dict() | {names[name]: values for name, values in made.items()}
    mels = {"features": 16, "n_fft": None, "sample_rate": rate_hz}
    if hybrid:  # a transducer, whose encoder has a CTC head too
        weights = {name.replace("ctc_head.", "ctc_decoder.decoder_layers.0."): each for name, each in weights.items()}
        weights |= {"decoder.prediction.embed.weight": torch.zeros(6, 4), "joint.pred.weight": torch.zeros(4, 4)}
    more = {"aux_ctc": {"decoder": {"vocabulary": ["▁a", *"bcde"]}}, "decoder": {}} if hybrid else {}
    source = SimpleNamespace(state_dict=lambda: weights)
    file = nemo(tmp_path / "a.nemo", source, ["▁a", *"bcde"], mels, more, subsampling=subsampling, **older)
    got = heard(imported(tmp_path / "model", model=file), sound(int((1.28 if older else 2.56) * rate_hz)))
    assert got.shape == (32, 6)
    for frame, due in BY_NEMO[subsampling, rate_hz].items():
        np.testing.assert_allclose(got[frame], [due[5], *due[:5]], atol=2e-4)


@pytest.mark.parametrize(("samples", "due"), [(1999, 3), (4001, 7), (12_345, 20), (20_160, 32)])
def test_an_older_conformer_has_as_many_frames_as_in_nemo(tmp_path: Path, samples: int, due: int) -> None:
    """What NeMo 3.0.0 gave, also where samples do not fill the last frame."""
    file = nemo(tmp_path / "a.nemo", parakeet(older=True, **OLDER), ["▁a", *"bcde"], subsampling="striding", **OLDER)
    model = imported(tmp_path / "model", model=file)
    about = json.loads(model.read_bytes(0, ".model.json"))
    assert about["audio"]["frame_shift_samples"] == 640
    run = ForeignModel(about, model.read_bytes(0, ".safetensors")).run
    assert len(run(noise(2)[None, :samples])) == due


def theirs_of(name: str) -> str:
    for own, theirs in NAMES.items():
        name = name.replace(theirs, own)
    return name


@pytest.mark.parametrize(
    ("mels", "encoder", "says"),
    [
        ({"highfreq": 7000}, {}, "preprocessor.highfreq is '7000', not None"),
        ({"mel_norm": None}, {}, "mel_norm is 'None', not 'slaney'"),
        ({"log_zero_guard_type": "clamp"}, {}, "log_zero_guard_type"),
        ({"_target_": "nemo.collections.asr.modules.AudioToMFCCPreprocessor"}, {}, "preprocessor is AudioToMFCC"),
        ({}, {"conv_context_size": "causal"}, "conv_context_size is 'causal'"),
        ({}, {"subsampling": "vggnet"}, "subsampling is 'vggnet', not 'striding' or 'dw_striding'"),
        ({}, {"_target_": "nemo.collections.asr.modules.ConvASREncoder"}, "encoder is ConvASREncoder, not Conformer"),
        ({}, {"subsampling": "striding"}, r"other shapes: encoder\.subsampling\.layers\.2\.weight"),  # of dw_striding
    ],
)
def test_settings_of_other_networks_are_refused(tmp_path: Path, mels: Any, encoder: Any, says: str) -> None:
    with pytest.raises(MegahourError, match=says):
        imported(tmp_path / "m", model=nemo(tmp_path / "a.nemo", parakeet(), ["▁a", *"bcde"], mels, **encoder))


def test_weights_of_other_parts_are_refused(tmp_path: Path) -> None:
    """Such as a projection after the encoder, or adapters: without them the outputs would be others."""
    more = SimpleNamespace(state_dict=lambda: parakeet().state_dict() | {"encoder.out_proj.weight": torch.zeros(9)})
    with pytest.raises(MegahourError, match=r"other parts .*encoder\.out_proj\.weight"):
        imported(tmp_path / "m", model=nemo(tmp_path / "a.nemo", more, ["▁a", *"bcde"]))


def nemo(path: Path, whole: Any, letters: list[str], mels: Any = None, more: Any = None, **changed: Any) -> Path:
    """A file as NeMo writes it, of the same weights under NeMo's names. mels: settings of the front end. more: of the
    configuration. changed: settings of the encoder."""
    mel = {"normalize": "per_feature", "features": 80, "window": "hann", "n_fft": 512, "dither": 1e-5, "preemph": 0.97}
    mel |= {"sample_rate": RATE_HZ, "window_size": 0.025, "window_stride": 0.01, **(mels or {})}
    encoder = {"d_model": 16, "n_layers": 2, "n_heads": 2, "ff_expansion_factor": 2, "feat_in": 80, "xscaling": True}
    encoder |= {"subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 8}
    encoder |= {
        "feat_in": mel["features"],
        "conv_kernel_size": 9,
        "att_context_size": [-1, -1],
        "use_bias": True,
        **changed,
    }
    config = {"preprocessor": mel, "encoder": encoder | changed, "decoder": {"vocabulary": letters}, **(more or {})}
    weights = {"preprocessor.featurizer.window": torch.ones(400)}
    for name, values in whole.state_dict().items():
        for own, theirs in NAMES.items():
            name = name.replace(theirs, own)
        weights[name] = values
    saved_weights = io.BytesIO()
    torch.save(weights, saved_weights)
    with tarfile.open(path, "w") as tar:
        for name, data in (
            ("model_config.yaml", yaml.safe_dump(config).encode()),
            ("model_weights.ckpt", saved_weights.getvalue()),
        ):
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_a_nemo_file_is_the_same_network(tmp_path: Path) -> None:
    torch.manual_seed(3)
    encoder = {**SMALL, "subsampling_conv_channels": 8}
    whole = transformers.ParakeetForCTC(
        transformers.ParakeetCTCConfig(vocab_size=6, pad_token_id=5, encoder_config=encoder)
    ).eval()
    model = imported(tmp_path / "model", model=nemo(tmp_path / "a.nemo", whole, ["▁a", *"bcde"]))
    about = json.loads(model.read_bytes(0, ".model.json"))
    assert about["tokens"] == ["<blank>", "▁a", *"bcde"]
    samples = noise(3 * 0.64)
    with torch.inference_mode():
        given = transformers.ParakeetFeatureExtractor()(samples, sampling_rate=RATE_HZ, return_tensors="pt")
        due = whole(**given).logits[0].log_softmax(-1).numpy()
    np.testing.assert_allclose(heard(model, samples), due[:24, about["order"]], atol=1e-4)  # the 25th is padding
    streaming = nemo(tmp_path / "b.nemo", whole, ["▁a", *"bcde"], att_context_size=[70, 13])
    with pytest.raises(MegahourError, match=r"att_context_size is '\[70, 13\]'.*not an offline Conformer"):
        imported(tmp_path / "none", model=streaming)


def test_a_nemo_file_that_would_run_something_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "was-run").touch, ())

    data = io.BytesIO()
    torch.save({"a": Evil()}, data)
    path = nemo(tmp_path / "a.nemo", torch.nn.Linear(1, 1), ["a"])
    with tarfile.open(path, "a") as tar:  # the last of one name counts
        member = tarfile.TarInfo("model_weights.ckpt")
        member.size = len(data.getvalue())
        tar.addfile(member, io.BytesIO(data.getvalue()))
    with pytest.raises(MegahourError, match="does not hold tensors only"):
        imported(tmp_path / "none", model=path)
    assert not (tmp_path / "was-run").exists()


def test_nemo_weights_may_share_memory(tmp_path: Path) -> None:
    encoder = {**SMALL, "subsampling_conv_channels": 8}
    config = transformers.ParakeetCTCConfig(vocab_size=6, pad_token_id=5, encoder_config=encoder)
    weights = transformers.ParakeetForCTC(config).state_dict()
    both = torch.cat([weights["ctc_head.bias"], torch.zeros(6)])
    shared = SimpleNamespace(state_dict=lambda: weights | {"ctc_head.bias": both[:6], "ctc_head.other": both[:6]})
    model = imported(tmp_path / "model", model=nemo(tmp_path / "a.nemo", shared, ["▁a", *"bcde"]))
    assert model.complete


def test_nemo_weights_that_would_unpack_to_much_more_are_refused(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("weights/data.pkl", bytes(1 << 20))
    path = nemo(tmp_path / "a.nemo", torch.nn.Linear(1, 1), [*"abcde"])
    with tarfile.open(path, "a") as tar:
        about = tarfile.TarInfo("model_weights.ckpt")
        about.size = len(data.getvalue())
        tar.addfile(about, io.BytesIO(data.getvalue()))
    with pytest.raises(MegahourError, match="would unpack to 1048576"):
        imported(tmp_path / "none", model=path)


@pytest.mark.parametrize(
    ("letters", "member", "content", "says"),
    [
        (["<blank>", *"abcd"], "", b"", "share the token '<blank>'"),
        (["a", "a", *"bcd"], "", b"", "share the token 'a'"),
        ([*"abcde"], "model_config.yaml", b"[" * 5000, "is not YAML"),
        ([*"abcde"], "model_config.yaml", b"a: 2001-99-99", "is not YAML"),
        ([*"abcde"], "model_weights.ckpt", {"a": torch.zeros(1).expand(1 << 33)}, r"its tensors claim 34359738368"),
        ([*"abcde"], "model_weights.ckpt", {"a": torch.eye(9).to_sparse()}, "not a map from names to dense tensors"),
        ([*"abcde"], "model_weights.ckpt", {3: torch.zeros(9)}, "not a map from names to dense tensors"),
    ],
)
def test_a_nemo_file_with_wrong_contents_is_refused(
    tmp_path: Path, letters: list[str], member: str, content: Any, says: str
) -> None:
    path = nemo(tmp_path / "a.nemo", torch.nn.Linear(1, 1), letters)
    if not isinstance(content, bytes):
        data = io.BytesIO()
        torch.save(content, data)
        content = data.getvalue()
    with tarfile.open(path, "a") as tar:
        about = tarfile.TarInfo(member)
        about.size = len(content)
        tar.addfile(about, io.BytesIO(content))
    with pytest.raises(MegahourError, match=says):
        imported(tmp_path / "none", model=path)


def test_a_window_without_an_end_is_refused(tmp_path: Path) -> None:
    path = nemo(tmp_path / "a.nemo", torch.nn.Linear(1, 1), [*"abcde"], mels={"window_size": float("inf")})
    with pytest.raises(MegahourError, match="does not describe the encoder: OverflowError"):
        imported(tmp_path / "none", model=path)


def test_a_damaged_compressed_nemo_file_is_named(tmp_path: Path) -> None:
    """xz has errors of its own."""
    path = nemo(tmp_path / "a.nemo", torch.nn.Linear(1, 1), [*"abcde"])
    with tarfile.open(path, "a") as tar:
        about = tarfile.TarInfo("tokenizer.model")
        about.size = 1 << 20
        tar.addfile(about, io.BytesIO(np.random.default_rng(1).bytes(about.size)))
    packed = bytearray(lzma.compress(path.read_bytes()))
    packed[-200_000:-100_000] = bytes(100_000)  # far from where the archive is opened
    path.write_bytes(packed)
    with pytest.raises(MegahourError, match=r"(?s)not a \.nemo file.*copy it again"):
        imported(tmp_path / "none", model=path)
