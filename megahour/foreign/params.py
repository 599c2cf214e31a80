"""The parameters of the stages in `foreign`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params


class ImportAlignerParams(Params):
    """Import a CTC model as an aligner.

    It may be ONNX or TorchScript with its tokens, a Hugging Face checkpoint, a .nemo file, or a model of ESPnet2 or
    SpeechBrain.
    """

    model: str = ""
    """Path or URL of a .onnx or TorchScript file (.pt, .ts, .torchscript), of the folder of a Hugging Face checkpoint
    (config.json, model.safetensors, vocab.json), of a .nemo file of a Conformer with CTC, or of a model of ESPnet2
    (packed .zip, its folder, or the .pth beside config.yaml) or SpeechBrain (the folder of hyperparams.yaml), or of a
    bundle of `export-model` with CTC. All but the first two define the parameters below themselves."""
    tokens: str = ""
    """Token list of the model: one token per line, or JSON (a list, or a map from token to number)."""
    format: Literal["auto", "onnx", "torchscript", "huggingface", "nemo", "espnet", "speechbrain"] = "auto"
    """Format of the model. auto: by the file's name. huggingface: a folder with a config.json. espnet: one with a
    meta.yaml, a .zip, or a .pth beside its config.yaml. speechbrain: one with a hyperparams.yaml."""
    language: str = Field("", json_schema_extra=LATER)
    """With a checkpoint that has adapters for many languages (MMS): name of the adapter, such as deu."""
    blank: str = ""
    """The blank token. Empty: the first of `<blank>`, `<blk>`, `<pad>`, `[PAD]` and `<eps>` that exists."""
    separator: str = ""
    """The token between words. Empty: | or a space, if there is one."""
    case: Literal["auto", "lower", "upper"] = "auto"
    """upper: compare the model's letters with the text in lower case. lower: compare them unchanged. auto: decide by
    the tokens."""
    input: Literal["waveform", "log-mel"] = "waveform"
    """Input of the model. An ONNX graph whose input has three axes is taken as log-mel."""
    rate_hz: int = Field(16_000, ge=4000, le=192_000)
    """Sampling rate of the audio that the model takes, in Hz."""
    frame_shift_samples: int = Field(320, ge=1)
    """Samples (at `rate_hz`) between output frames. If left out, it is measured on noise."""
    scale: Literal["unit", "int16"] = "unit"
    """Range of the samples. unit: -1 … 1. int16: -32768 … 32767."""
    normalise: bool = False
    """Normalise each window to mean 0 and variance 1, over its samples or over each mel."""
    mels: int = Field(80, ge=8, le=256)
    """Number of mel filters of log-mel input, with 25 ms windows every 10 ms."""
    low_hz: float = Field(20.0, ge=0)
    """Lower edge of the lowest mel filter, in Hz."""
    high_hz: float = 0.0
    """Upper edge of the highest mel filter, in Hz. 0 or less is relative to the Nyquist frequency."""
    edges: Literal["inside", "mirrored"] = Field("inside", json_schema_extra=LATER)
    """Frames of log-mel input. inside: of windows inside the audio only (Kaldi's snip_edges). mirrored: every 10 ms,
    with the ends reflected."""
    layout: Literal["frames-first", "mels-first"] = "frames-first"
    """Order of the axes of log-mel input."""
    input_name: str = ""
    """ONNX input for audio or features. Empty: the first."""
    length_name: str = ""
    """ONNX input for the length. With TorchScript, any name passes the length as second argument."""
    output_name: str = ""
    """ONNX output with the posteriors. Empty: the first."""
    output: Literal["logits", "log-probs"] = "logits"
    """Whether the output is before (logits) or after the softmax (log-probs)."""

    @model_validator(mode="after")
    def _check(self) -> ImportAlignerParams:
        if self.input == "log-mel" and self.frame_shift_samples * 100 % self.rate_hz:
            raise ValueError(
                f"frame_shift_samples = {self.frame_shift_samples} at {self.rate_hz} Hz is not a multiple of the 10 ms "
                "between log-mel frames"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Includes versions of the files, so that a rewritten file is a new job, as for `ingest`."""
        from megahour.core.filesystems import file_system, version_of

        files = []
        for path in filter(None, (self.model, self.tokens)):
            fs, inner = file_system(path)
            deep = any(fs.exists(f"{inner.rstrip('/')}/{name}") for name in ("meta.yaml", "hyperparams.yaml"))
            inside = sorted(fs.find(inner) if deep else fs.ls(inner, detail=False)) if fs.isdir(inner) else []
            files += [fs.unstrip_protocol(file) for file in inside if fs.isfile(file)] if inside else [path]
            beside = f"{inner.rpartition('/')[0]}/config.yaml"  # the settings and tokens of ESPnet's weights
            files += [fs.unstrip_protocol(beside)] if path.lower().endswith(".pth") and fs.exists(beside) else []
        return {**super().identity(), "versions": [version_of(path) for path in files]}

    def reach(self) -> None:
        """The versions of the files."""
        self.identity()


class ExportLatticesParams(Params):
    """Export lattices to Kaldi archives or HTK's SLF."""

    formats: list[Literal["kaldi", "kaldi-text", "lattice4", "slf"]] = Field(["kaldi"], min_length=1)
    """kaldi: compact lattices, binary. kaldi-text: the same as text. lattice4: plain lattices, for readers of OpenFst
    files. slf: a tar with one file per utterance."""


class ImportLatticesParams(Params):
    """Import lattices of other recognisers.

    Kaldi archives and HTK's SLF can be rescored, and scored beside our own.
    """

    source: list[str] = Field(min_length=1)
    """Files, globs or URLs of archives, or of SLF files or tars of them, also compressed (.gz)."""
    format: Literal["kaldi", "slf"] = "kaldi"
    """kaldi: compact lattices, binary or text. slf: HTK's format."""
    words: str = ""
    """With format kaldi: its words.txt."""
    sets: list[str] = Field(["test"])
    """Sets of the features whose utterances are imported."""
    model_name: str = "recogniser"
    """Name of the recogniser in the hypotheses."""
    acoustic_scale: float = Field(1.0, gt=0)
    """Acoustic scale for which the lattices were made, `acscale` in SLF."""
    frame_s: float = Field(0.01, gt=0)
    """Length of a frame, in seconds: 0.03 if the recogniser computes every third 10 ms frame."""

    @model_validator(mode="after")
    def _words_fit(self) -> ImportLatticesParams:
        if (self.format == "kaldi") != bool(self.words):
            raise ValueError(
                f"{self.format} {'needs' if self.format == 'kaldi' else 'has no use for'} words = WORDS.TXT"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Other contents are another job; other places are not."""
        from megahour.units.texts import files_digest

        files = {"source": files_digest(self.source), "words": files_digest([self.words]) if self.words else ""}
        return {**super().identity(), **files}


class NamesParams(Params):
    """Find the utterances whose names match imported records, laid out for the stages that import."""

    sets: list[str] = Field([])
    """Sets of the features whose utterances are matched by name."""
    recordings: bool = Field(False, json_schema_extra=LATER)
    """Records may name recordings, too: also find what else a name may mean, and send records without a name to the
    first shard of the sets."""


class ImportHypothesesParams(Params):
    """Import the texts of any recogniser from JSON.

    They can be scored beside our own, and make pseudo-labels.
    """

    source: list[str] = Field(min_length=1)
    """Files, globs or URLs: one JSON object per line (NeMo manifests with pred_text and others), or one file per
    utterance with its name (Whisper, Vosk, the JSON of `transcribe` and others), also compressed (.gz)."""
    sets: list[str] = Field(["unlabelled"])
    """Sets of the features whose utterances are imported."""
    model_name: str = "recogniser"
    """Name of the recogniser in the hypotheses."""
    language: str = "en"
    """Language for text normalisation: numbers and signs become spoken words, as in transcripts. Empty: texts stay as
    they are."""

    def identity(self) -> dict[str, Any]:
        """Other contents are another job; other places are not."""
        from megahour.units.texts import files_digest

        return {**super().identity(), "source": files_digest(self.source)}
