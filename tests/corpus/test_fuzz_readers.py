"""Every reader against inputs made wrong by seeds: none crashes or hangs, and each input is accounted for.

A seed changes small good files (`mutated`), and the stage reads them as any others. What it must not do is end,
take long over one of them, or lose one: what came in is kept, left out or quarantined, each with its reason, and
none as ``unexpected-error``, a reader's own fault. A slice runs with all tests, 2,900 inputs in `make faults`.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from json_shapes import SHAPES
from made_media import encode, murmur, put
from made_tracks import track
from mutated import Mutator

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.receipts import Receipt
from megahour.core.stage import Context, Stage, Task
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest import shard as ingest_module
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.stage import Ingest
from megahour.corpus.interchange import import_shard as import_module
from megahour.corpus.interchange.import_stage import Import
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.text.language_id import identify
from megahour.corpus.text.normalise import normalise
from megahour.corpus.transcripts.read import read_table
from megahour.foreign.hypotheses import ReadHypotheses
from megahour.foreign.params import ImportHypothesesParams
from megahour.lattices.kaldi_format import read_archive
from megahour.lattices.slf import from_slf

SLOWEST_S = 5.0  # of CPU, of one record; all are small
INPUTS = {
    "transcripts": 1000,
    "side files": 300,
    "tables": 300,
    "media": 400,
    "archives": 200,
    "manifests": 500,
    "names": 100,
    "hypotheses": 100,
}
SLICE = 0.04
FOUND = {"media": [232], "side files": [5197]}  # seeds that once found a fault and are not in the slice
SRT = (
    "1\n00:00:00,000 --> 00:00:00,100\n<i>Hello</i> there.\n\n2\n00:00:00,100 --> 00:00:00,200\n>> ANN: "
    "It is 12:30.\n\n3\n00:00:00,200 --> 00:00:00,240\nGood [laughs] day, $4.50.\n"
)
VTT = (
    "WEBVTT\n\nNOTE made\n\nSTYLE\n::cue { color: red }\n\nid 1\n00:00.000 --> 00:00.100 align:start\n<v Ann>"
    "Hello &amp; welcome.\n\n00:00.100 --> 00:00.200\n<00:00.150><c>It is</c> 5 o'clock on 3 May 2021.\n"
)
TXT = "Ann: Hello there.\nBob: Call +1 555 0100 or mail a@b.org.\nAnn: No. 12, page iv.\n\nBob: Bye!\nAnn: x\n"
TTML = (
    '<?xml version="1.0"?>\n<tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter" '
    'ttp:frameRate="25"><body><div begin="0s"><p begin="00:00:00.000" end="00:00:00:02">Hello<br/>there.</p><p>'
    '<span begin="100ms" dur="3f">It is</span> <span begin="0.2s">&amp; late.</span></p></div></body></tt>'
)
ASS = (
    "[Events]\nFormat: Layer, Start, End, Style, Name, Text\nDialogue: 0,0:00:00.00,0:00:00.10,Default,Ann,{\\i1}"
    "Hello,{\\i0}\\Nthere.\nDialogue: 0,0:00:00.10,0:00:00.20,Default,,{\\p1}m 0 0 l 1 1\nComment: 0,0:00:00.10,x\n"
)
GRID = 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n0.25\n<exists>\n2\n"IntervalTier"\n"ann - words"\n'
GRID += '0\n0.25\n2\n0\n0.1\n"Hello"\n0.1\n0.25\n"""there"""\n"TextTier"\n"points"\n0\n0.25\n1\n0.1\n"x"\n'
CTM = ";; made\ntalk 1 0.00 0.10 Hello 0.9\ntalk 1 0.10 0.10 there NA\n"
ELAN = (
    '<ANNOTATION_DOCUMENT><TIME_ORDER><TIME_SLOT TIME_SLOT_ID="a" TIME_VALUE="0"/><TIME_SLOT TIME_SLOT_ID="b" '
    'TIME_VALUE="100"/></TIME_ORDER><TIER TIER_ID="ref@Ann"><ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="r" '
    'TIME_SLOT_REF1="a" TIME_SLOT_REF2="b"><ANNOTATION_VALUE>1</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION>'
    '</TIER><TIER TIER_ID="text@Ann" PARENT_REF="ref@Ann"><ANNOTATION><REF_ANNOTATION ANNOTATION_ID="t" ANNOTATION_REF='
    '"r"><ANNOTATION_VALUE>Hello there.</ANNOTATION_VALUE></REF_ANNOTATION></ANNOTATION></TIER></ANNOTATION_DOCUMENT>'
)
STM = ";; made\ntalk 1 ann 0.00 0.10 <o,f0,female> Hello\ntalk 1 bob 0.10 0.20 there\n"
SAMI = (
    "<SAMI><HEAD><STYLE><!-- .EN {Name:English; lang:en-US;} --></STYLE></HEAD><BODY><SYNC Start=0><P Class=EN>"
    "Hello<br>there.<SYNC Start=100><P Class=EN>&nbsp;</BODY></SAMI>"
)
LRC = "[ar:Ann]\n[offset:+10]\n[00:00.00]Hello\n[00:00.10][00:00.20]<00:00.10>there.\n[00:00.22]\n"
TRANSCRIPTS = [
    *((".ttml", TTML.encode()), (".ass", ASS.encode()), (".textgrid", GRID.encode("utf-16")), (".ctm", CTM.encode())),
    *((".eaf", ELAN.encode()), (".stm", STM.encode()), (".smi", SAMI.encode()), (".lrc", LRC.encode())),
    (".tsv", b"start\tend\ttext\n0\t100\tHello\n100\t200\tthere.\n"),
    (".sbv", b"0:00:00.000,0:00:00.100\nHello\n\n0:00:00.100,0:00:00.200\nthere.\n"),
    (".sub", b"{1}{1}25.000\n{0}{2}{y:i}Hello|there.\n{3}{}Bye.\n"),
    (".lab", b"0 100000 sil\n100000 200000 ah\nor words\n"),
    *((".srt", SRT.encode()), (".vtt", VTT.encode()), (".txt", TXT.encode()), (".txt", TXT.encode("utf-16"))),
    (".srt", SRT.replace("\n", "\r\n").encode("utf-8-sig")),
    *((".json", json.dumps(value).encode()) for value in SHAPES.values()),
    (".json3", json.dumps(SHAPES["YouTube json3"]).encode()),
]
SIDE = {
    "licence": "https://creativecommons.org/licenses/by/4.0/ or MIT", "speaker": "Ann", "language": "en-GB",
    "date": "2021-05-03T10:00:00Z", "attribution": ["Ann", "Bob"], "metadata": {"licenseurl": "CC0", "title": "A"},
}  # fmt: skip
ROWS = [
    {"audio": f"{i}.wav", "text": "Hello there.", "name": f"row {i}", "speaker": "Ann", "bytes": 4000, "duration": 0.25}
    for i in range(6)
]


@cache
def wav(seed: int = 0, seconds: float = 0.25) -> bytes:
    return encode(murmur(seconds, seed=seed))


def test_there_are_enough() -> None:
    assert sum(INPUTS.values()) >= 2000


def share(kind: str) -> Any:
    """Parametrises a test by the seeds of all inputs of a kind, or of the slice."""
    n = round(INPUTS[kind] * SLICE)
    rest = pytest.param(range(n, INPUTS[kind]), marks=pytest.mark.faults)
    return pytest.mark.parametrize("seeds", [[*range(n), *FOUND.get(kind, [])], rest])


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both shard readers read their next record within the time limit."""

    def watch(module: Any, name: str) -> None:
        inner = getattr(module, name)

        def called(p: Any, items: Iterator[Any], *rest: Any) -> None:
            inner(p, in_time(items), *rest)

        monkeypatch.setattr(module, name, called)

    identify("what loads models " * 9, expected="en")  # a shorter text is not looked at
    normalise("and grammars: 3 of them")
    watch(ingest_module, "ingest_shard")
    watch(import_module, "import_shard")


def in_time(items: Iterator[Any]) -> Iterator[Any]:
    """In CPU time: on a busy machine the clock also counts what others do."""
    before, last = time.process_time(), None
    for item in items:
        assert time.process_time() - before < SLOWEST_S, (last, item)
        before, last = time.process_time(), item
        yield item


def made(stage: Stage[Any], p: Any, out: Path) -> list[Receipt]:
    """The receipts of all shards; each record is accounted for once."""
    artifact, receipts = Artifact(out), []
    for shard, task in enumerate(stage.plan(p, {})):
        with ShardWriter(artifact, shard, "fuzz") as writer:
            stage.run(p, {}, Task(json.loads(json.dumps(dict(task.spec)))), writer, Context(out / "work"))
            receipts.append(writer.commit())
    for receipt in receipts:
        counts = receipt.counts
        assert counts.came_in == counts.kept + sum(counts.dropped.values()), counts
        assert artifact.read_table(receipt.shard).num_rows == counts.kept
    unexpected = [bad for bad in bad_records(artifact) if bad["reason"] == "unexpected-error"]
    assert not unexpected, unexpected[:3]
    return receipts


def bad_records(artifact: Artifact) -> list[dict[str, str]]:
    paths = Path(artifact.path("quarantine")).glob("*.jsonl")
    return [json.loads(line) for path in sorted(paths) for line in path.read_text().splitlines()]


def ingested(source: Path, **params: Any) -> list[Receipt]:
    p = IngestParams(source=str(source), licence="CC0", language="en", **params)
    return made(Ingest(), p, source.with_name(f"{source.name}-out"))


def total(receipts: list[Receipt], what: str = "came_in") -> int:
    return sum(getattr(receipt.counts, what) for receipt in receipts)


@share("transcripts")
@pytest.mark.usefixtures("timed")
def test_transcripts(tmp_path: Path, seeds: Sequence[int]) -> None:
    for seed in seeds:
        suffix, good = TRANSCRIPTS[seed % len(TRANSCRIPTS)]
        put(tmp_path / "in", f"{seed}.wav", wav(seed, 3.1 if "json" in suffix else 0.25))
        put(tmp_path / "in", f"{seed}{suffix}", Mutator(seed).text(good))
    receipts = ingested(tmp_path / "in")
    assert total(receipts) == len(seeds)
    assert total(receipts, "kept") > len(seeds) / 3, "not all is lost"


@share("side files")
@pytest.mark.usefixtures("timed")
def test_side_files(tmp_path: Path, seeds: Sequence[int]) -> None:
    for seed in seeds:
        put(tmp_path / "in", f"{seed}.wav", wav(seed))
        put(tmp_path / "in", f"{seed}.txt", "Hello.")
        put(tmp_path / "in", f"{seed}.json", Mutator(seed).text(json.dumps(SIDE).encode()))
    assert total(ingested(tmp_path / "in")) == len(seeds)


@share("media")
@pytest.mark.usefixtures("timed")
def test_media(tmp_path: Path, seeds: Sequence[int]) -> None:
    samples = murmur(0.25)
    kinds = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16"), ".mp3": ("MP3", "MPEG_LAYER_III"),
             ".ogg": ("OGG", "VORBIS"), ".aiff": ("AIFF", "PCM_24"), ".au": ("AU", "FLOAT"), ".caf": ("CAF", "PCM_16"),
             ".w64": ("W64", "PCM_16")}  # fmt: skip
    good = [(suffix, encode(samples, kind=kind, subtype=sub)) for suffix, (kind, sub) in kinds.items()]
    tracks = {
        ".m4a": ("ipod", "aac"),
        ".mkv": ("matroska", "pcm_s16le"),
        ".aac": ("adts", "aac"),
        ".avi": ("avi", "mp2"),
    }
    good += [(suffix, track(samples, *of)) for suffix, of in tracks.items()]
    for seed in seeds:
        suffix, data = good[seed % len(good)]
        put(tmp_path / "in", f"{seed}{suffix}", Mutator(seed).bytes(data, head=300))
        put(tmp_path / "in", f"{seed}.txt", "Hello.")
    assert total(ingested(tmp_path / "in", min_seconds=0.05)) == len(seeds)


@share("archives")
@pytest.mark.usefixtures("timed")
def test_archives(tmp_path: Path, seeds: Sequence[int]) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (
            ("a/ü.wav", wav(1)),
            ("a/ü.txt", b"Hello."),
            ("b" * 120 + ".wav", wav(2)),
            ("c.json", b"{}"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    good = target.getvalue()
    for seed in seeds:
        data = Mutator(seed).bytes(gzip.compress(good, mtime=0) if seed % 4 == 0 else good, head=2500)
        put(tmp_path / "in", f"{seed:04d}.tar{'.gz' if seed % 4 == 0 else ''}", data)
    ingested(tmp_path / "in")


def table(seed: int) -> tuple[str, bytes]:
    if seed % 3 == 0:
        return ".jsonl", Mutator(seed).text(b"".join(json.dumps(row).encode() + b"\n" for row in ROWS))
    if seed % 3 == 1:
        mark = "\t" if seed % 2 else ","
        lines = [mark.join(ROWS[0]), *(mark.join(map(str, row.values())) for row in ROWS)]
        return ".tsv" if seed % 2 else ".csv", Mutator(seed).text("\n".join(lines).encode())
    target = io.BytesIO()
    if seed % 2:
        rows = json.loads(Mutator(seed).json(json.dumps(ROWS).encode()))
        columns = (
            {name: [row.get(name) if isinstance(row, dict) else row for row in rows] for name in ROWS[0]}
            if isinstance(rows, list)
            else {}
        )
        kept = {}
        for name, values in columns.items():
            try:
                kept[name] = pa.array(values)
            except (pa.ArrowException, OverflowError, UnicodeError):
                kept[name] = pa.array([str(value).encode("utf-8", "surrogatepass") for value in values])
        pq.write_table(pa.table(kept), target)
        return ".parquet", target.getvalue()
    pq.write_table(pa.Table.from_pylist(ROWS), target)
    return ".parquet", Mutator(seed).bytes(target.getvalue())


@share("tables")
@pytest.mark.usefixtures("timed")
def test_tables(tmp_path: Path, seeds: Sequence[int]) -> None:
    for number, row in enumerate(ROWS):
        put(tmp_path, row["audio"], wav(number))
    refused = kept = 0
    for seed in seeds:
        suffix, data = table(seed)
        source = put(tmp_path, f"{seed}{suffix}", data)
        try:
            kept += total(ingested(source), "kept")
        except ConfigError:
            refused += 1
    assert refused < len(seeds) / 2
    assert kept > len(seeds)


def manifest(folder: Path, seed: int) -> tuple[str, Path, dict[str, Any]]:
    """(format, source, more parameters) of a foreign data set with one file changed."""
    change = Mutator(seed)
    kind = ("nemo", "lhotse", "kaldi", "webdataset", "parquet", "supervisions")[seed % 6]
    entries = [
        {"audio_filepath": "a.wav", "offset": 0.01 * i, "duration": 0.1, "text": "Hello.", "lang": "en"}
        for i in range(3)
    ]
    recording = {"id": "r", "sampling_rate": 16000, "num_samples": 4000, "duration": 0.25,
                 "sources": [{"type": "file", "source": "a.wav", "channels": [0]}]}  # fmt: skip
    word = {"symbol": "hello", "start": 0.02, "duration": 0.05, "score": 0.5}
    supervision = {"id": "s", "recording_id": "r", "start": 0, "duration": 0.2, "channel": 0, "text": "Hello.",
                   "alignment": {"word": [word]}, "custom": {"licence": "CC0"}}  # fmt: skip
    cut = {
        "id": "c",
        "start": 0,
        "duration": 0.25,
        "channel": 0,
        "type": "MonoCut",
        "recording": recording,
        "supervisions": [supervision],
    }
    if kind == "kaldi":
        files = {"wav.scp": "r a.wav\nq a.wav\n", "segments": "u r 0.0 0.1\nv q 0.1 -1\n", "text": "u Hello.\nv Bye.\n",
                 "utt2spk": "u ann\nv bob\n", "utt2lang": "u en\nv en\n"}  # fmt: skip
        chosen = list(files)[seed // 6 % len(files)]
        for name, text in files.items():
            put(folder, name, change.text(text.encode()) if name == chosen else text)
        return kind, folder, {}
    if kind == "webdataset":
        target = io.BytesIO()
        side = change.text(
            json.dumps({"text": "Hello.", "speaker": "a", "key": 1, "tier": "", "word_start_samples": []}).encode()
        )
        with tarfile.open(fileobj=target, mode="w") as tar:
            for name, data in (
                ("a.wav", wav()),
                ("a.json", side),
                ("b.wav", wav(1)),
                ("b.txt", change.bytes(b"Hello.")),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return (
            kind,
            put(folder, "t.tar", change.bytes(target.getvalue()) if seed // 6 % 3 == 0 else target.getvalue()),
            {},
        )
    if kind == "parquet":
        target = io.BytesIO()
        pq.write_table(
            pa.table({"audio": [{"bytes": wav(), "path": "a.wav"}], "text": ["Hello."], "id": ["a"]}), target
        )
        return kind, put(folder, "t.parquet", change.bytes(target.getvalue())), {}
    if kind == "supervisions":
        put(folder, "s/s.jsonl", change.text(json.dumps(supervision).encode() + b"\n"))
        return "lhotse", put(folder, "r.jsonl", json.dumps(recording)), {"supervisions": str(folder / "s/s.jsonl")}
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in (entries if kind == "nemo" else [cut]))
    data = change.text(lines)
    return kind, put(folder, "m.jsonl", data), {}


@share("manifests")
@pytest.mark.usefixtures("timed")
def test_manifests_of_other_tools(tmp_path: Path, seeds: Sequence[int]) -> None:
    kept = 0
    for seed in seeds:
        folder = tmp_path / str(seed)
        put(folder, "a.wav", wav())
        form, source, more = manifest(folder, seed)
        values = {"format": form, "source": str(source), "licence": "CC0", "language": "en", **more}
        values["kind"] = ("utterances", "recordings")[seed // 2 % 2]
        try:
            kept += total(made(Import(), ImportParams(**values), tmp_path / f"{seed}-out"), "kept")
        except ConfigError:
            assert form in ("parquet", "kaldi", "webdataset"), "a line is a record of its own"
    assert kept > len(seeds) / 3


@share("names")
def test_lists_of_transcripts(seeds: Sequence[int]) -> None:
    for seed in seeds:
        check(read_table, Mutator(seed).text(b"a.wav: Hello.\nb|Good day.\nc\tBye.\n# d: x\n"))


SLF = (
    "VERSION=1.0\nUTTERANCE=u\nN=3 L=2\nI=0 t=0.0\nI=1 t=0.1\nI=2 t=0.2\nJ=0 S=0 E=1 W=a a=-1 l=-2\n"
    "J=1 S=1 E=2 W=b a=-1\n"
)
ARCHIVE = "u \n0 1 1 -0.5,1.5,1_2\n1 2 2 0,1,3\n2 0,0,\n\n"


def archive_entries(data: bytes) -> list[object]:
    return list(read_archive(io.BufferedReader(io.BytesIO(data)), ["<eps>", "a", "b"]))  # type: ignore[arg-type]


@share("hypotheses")
def test_what_recognisers_wrote(tmp_path: Path, seeds: Sequence[int]) -> None:
    shapes = list(SHAPES.values())
    for seed in seeds:
        change = Mutator(seed)
        lines = [json.dumps({"id": "u", "pred_text": "hello", "score": 0.5}), json.dumps(shapes[seed % len(shapes)])]
        path = put(tmp_path, f"{seed}.jsonl", change.text("\n".join(lines).encode()))
        for record in ReadHypotheses().records(ImportHypothesesParams(source=[str(path)]), str(path)):
            assert record.row.get("reason") != "unexpected-error", record
        slf = change.text(SLF.encode()).decode("utf-8", "replace").splitlines()
        check(lambda _, slf=slf: from_slf(slf, 0.01), b"", ValueError)
        check(archive_entries, change.text(ARCHIVE.encode()), ValueError)


def check(read: Callable[[bytes], object], data: bytes, *refusals: type[Exception]) -> None:
    """`data` is read in time, or refused as it should be."""
    before = time.process_time()
    try:
        read(data)
    except (MegahourError, *refusals):
        pass
    assert time.process_time() - before < SLOWEST_S, data
