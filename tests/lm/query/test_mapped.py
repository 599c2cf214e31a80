"""The mapped form: entries come back unchanged, the estimator writes it directly, damage is detected."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import SMALL, entries, estimate_text

from megahour.core.errors import MegahourError
from megahour.decode.grammar import grammar
from megahour.lm.arpa.direct import ThreadedFile
from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.arpa.read import read_arrays
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.query.lookup import checksum
from megahour.lm.query.mapped import HEADER, VERSION, MappedModel, open_mapped
from megahour.lm.query.mapped_import import build, from_model, load_arpa, to_arrays
from megahour.lm.query.mapped_sink import estimate_mapped
from megahour.lm.query.model_files import open_model
from megahour.lm.text.sources import line_blocks
from megahour.lm.text.vocabulary import SPECIALS, Vocabulary

EXPECTED = Path(__file__).parents[1] / "lmplz"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ARPA file of lmplz's, in the mapped form."""
    path = tmp_path_factory.mktemp("mapped") / "small.mlm"
    with ThreadedFile(path) as file:
        build(read_arrays(EXPECTED / "order3.arpa"), file, "order3")
    return path


def rounded(model: NgramModel) -> dict[tuple[str, ...], tuple[float, float]]:
    """Entries as float32, which the mapped form keeps."""
    return {gram: tuple(np.float32(values).tolist()) for gram, values in entries(model).items()}  # type: ignore[misc]


@pytest.mark.parametrize("name", ["order1", "order2", "order3", "order5", "order4-prune01"])
def test_an_arpa_file_comes_out_as_it_went_in(name: str) -> None:
    path = EXPECTED / f"{name}.arpa"
    mapped, model = load_arpa(path), read_arpa(path)
    assert mapped.sizes == model.sizes
    assert rounded(to_arrays(mapped)) == rounded(model)


def test_an_arpa_file_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As in `megahour lm score <(zcat lm.arpa.gz) TEXT`: it is opened once, also to find out what it is."""
    os.mkfifo(pipe := tmp_path / "63")
    threading.Thread(target=pipe.write_bytes, args=((EXPECTED / "order3.arpa").read_bytes(),), daemon=True).start()
    assert open_model(pipe).sizes == load_arpa(EXPECTED / "order3.arpa").sizes


words = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def models(draw: st.DrawFn) -> NgramModel:
    """Any n-grams at all: suffixes and contexts may be missing, as after entropy pruning."""
    vocabulary = Vocabulary([*SPECIALS, "a", "b", "c", "d"])
    order = draw(st.integers(1, 4))
    number = st.floats(-9.0, 0.0, width=32)
    grams, logp, backoff = [np.arange(7, dtype=np.int32)[:, None]], [], []
    for k in range(2, order + 1):
        gram = st.tuples(*[st.integers(0, 6)] * (k - 1), st.sampled_from([0, 2, 3, 4, 5, 6]))
        found = draw(st.lists(gram.filter(lambda g: 2 not in g[:-1] and 1 not in g[1:]), unique=True, max_size=12))
        grams.append(np.array(found, np.int32).reshape(-1, k))
    for k, level in enumerate(grams, 1):
        logp.append(np.array(draw(st.lists(number, min_size=len(level), max_size=len(level))), np.float64))
        weights = draw(st.lists(st.floats(-3.0, 1.0, width=32), min_size=len(level), max_size=len(level)))
        backoff.append(np.array(weights, np.float64) * (k < order))
    return NgramModel(vocabulary, grams, logp, backoff)


@settings(max_examples=60)
@given(models())
def test_any_set_of_ngrams_comes_out_as_it_went_in(model: NgramModel) -> None:
    assert rounded(to_arrays(from_model(model))) == rounded(model)


@pytest.mark.parametrize(("order", "cutoffs"), [(1, [0]), (2, [0]), (3, [0, 0, 1]), (5, [0])])
def test_the_estimator_writes_what_its_arpa_file_has(order: int, cutoffs: list[int], tmp_path: Path) -> None:
    corpus = read_corpus(line_blocks(SMALL, "lines")).corpus
    paths = [tmp_path / f"{threads}.mlm" for threads in (1, 2)]
    for threads, path in enumerate(paths, 1):
        made = estimate_mapped(corpus, order, path, cutoffs=cutoffs, threads=threads)
    mapped = open_mapped(paths[0])
    mapped.verify()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert mapped.facts["discounts"] == [list(values) for values in made.discounts]
    ours, text = entries(to_arrays(mapped)), entries(estimate_text(SMALL, order, cutoffs).model)
    assert ours.keys() == text.keys()
    assert max(abs(np.subtract(ours[gram], text[gram])).max() for gram in text) < 1e-6


def test_words_that_an_estimate_leaves_out_are_unknown(tmp_path: Path) -> None:
    corpus = read_corpus(line_blocks(SMALL, "lines")).corpus
    allowed = np.array([corpus.spell(i) != b"boat" for i in range(corpus.size)], np.uint8)
    estimate_mapped(corpus, 3, tmp_path / "a.mlm", allowed=allowed)
    estimate(corpus, 3, tmp_path / "a.arpa", allowed=allowed)
    ours, text = entries(to_arrays(open_mapped(tmp_path / "a.mlm"))), entries(read_arpa(tmp_path / "a.arpa"))
    assert ("boat",) not in ours
    assert ours.keys() == text.keys()
    assert max(abs(np.subtract(ours[gram], text[gram])).max() for gram in text) < 1e-6


def test_opening_takes_milliseconds_and_leaves_the_file_alone(small: Path) -> None:
    before = small.read_bytes()
    open_mapped(small)  # imports and compiled code, once
    seconds = []
    for _ in range(5):
        begun = time.process_time()
        open_mapped(small)
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 0.02
    assert small.read_bytes() == before


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"\\data\\\n" + data[7:], "not a mapped model"),
        (lambda data: data[:100], "100 bytes are too few"),
        (lambda data: data[:-64], "cut short: array 'entries'"),
        (lambda data: flipped(data, 60), "the header is damaged"),
        (lambda data: data[:8] + bytes([VERSION + 1]) + data[9:], f"version {VERSION + 1} of the format"),
    ],
)
def test_damaged_files_are_refused_at_once(change: object, message: str, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.mlm"
    path.write_bytes(change(small.read_bytes()))  # type: ignore[operator]
    with pytest.raises(MegahourError, match=message) as caught:
        open_mapped(path)
    assert str(caught.value).startswith(f"{path}:")
    assert "megahour lm convert" in str(caught.value)


def test_verify_finds_a_single_bit_in_any_array(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    places = places_of(open_mapped(small), data)
    assert places.keys() == {"table", "arena", "starts", "words", "segments", "entries"}
    for key, at in places.items():
        path = tmp_path / f"{key}.mlm"
        path.write_bytes(flipped(data, at))
        with pytest.raises(MegahourError, match=f"the checksum of array '{key}'"):
            open_mapped(path).verify()


def places_of(model: MappedModel, data: bytes) -> dict[str, int]:
    """A byte of each array, found by what the arrays begin with."""
    table = model.vocabulary
    arrays = {"table": table.table, "arena": table.arena, "starts": table.starts}
    arrays |= {"words": model.words, "segments": model.segments, "entries": model.entries}
    places, at = {}, HEADER
    for key, array in arrays.items():
        at = data.index(array.tobytes(), at)
        places[key] = at
    return places


def test_the_layout_is_that_of_the_version() -> None:
    """Hashes of words and keys are part of the form: when these sums change, VERSION must be raised."""
    sums = load_arpa(EXPECTED / "order3.arpa").checksums
    assert VERSION == 1
    assert sums["table"] == 4670549712749451500
    assert sums["entries"] == 12210512442226898475


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.integers(0, 20))
def test_checksums_of_parts_add_up(values: list[int], cut: int) -> None:
    array = np.array(values, np.uint64)
    whole = int(checksum(array, 0))
    cut = min(cut, len(values))
    assert whole == (int(checksum(array[:cut], 0)) + int(checksum(array[cut:], cut))) % 2**64
    assert whole == sum(value * (2 * i + 1) for i, value in enumerate(values)) % 2**64


def test_an_ngram_that_is_there_twice_is_an_error() -> None:
    model = estimate_text(SMALL, 2).model
    twice = np.concatenate([model.grams[1], model.grams[1][3:4]])
    doubled = NgramModel(
        model.vocabulary,
        [model.grams[0], twice],
        [model.log10_prob[0], np.zeros(len(twice))],
        [model.log10_backoff[0], np.zeros(len(twice))],
    )
    text = " ".join(model.vocabulary.words[i] for i in model.grams[1][3])
    with pytest.raises(MegahourError, match=f"the 2-gram '{text}' occurs twice"):
        from_model(doubled)


def test_the_decoders_grammar_is_the_same_from_either_form() -> None:
    path = EXPECTED / "order3.arpa"
    model = read_arpa(path)
    labels = {word: i for i, word in enumerate(model.vocabulary.words[3:], 1)}
    first, second = (grammar(each, labels, 99) for each in (model, to_arrays(load_arpa(path))))
    assert len(first.final) == len(second.final)
    assert arcs_of(first) == pytest.approx(arcs_of(second))


def arcs_of(fst: object) -> list[float]:
    """Costs of arcs and final states in falling order: the numbering of states depends on the order of n-grams."""
    costs = np.concatenate([fst.arcs["weight"], fst.final[np.isfinite(fst.final)]])  # type: ignore[attr-defined]
    return sorted(np.round(costs, 4).tolist())
