"""Tempo: pieces get longer or shorter, their frames are read between neighbours, labels move with them."""

import numpy as np
import pytest
from made_artifacts import MELS, features_artifact, units_artifact, utterances

from megahour.batches.index import shelves
from megahour.batches.labels import SenoneLabels
from megahour.batches.loader import Loader, drawn_lengths, stretched, stretched_labels
from megahour.batches.token_labels import TokenLabels
from megahour.batches.window import Front
from megahour.units.tokens import Characters

STACK = 3
FRONT = Front(STACK, np.zeros(MELS, np.float32), np.ones(MELS, np.float32))


def test_a_ramp_stays_a_ramp_from_its_first_to_its_last_frame():
    ramp = np.zeros((2, 4, STACK * 2), np.float32)
    ramp[0] = np.repeat(np.arange(12), 2).reshape(4, -1)
    ramp[1, :2] = np.repeat(np.arange(6), 2).reshape(2, -1)
    found = stretched(ramp, np.array([4, 2]), np.array([3, 5]), STACK)
    assert found.shape == (2, 5, STACK * 2)
    np.testing.assert_allclose(found[0, :3].reshape(9, 2)[:, 1], np.linspace(0, 11, 9), rtol=1e-6)
    assert not found[0, 3:].any()
    np.testing.assert_allclose(found[1].reshape(15, 2)[:, 0], np.linspace(0, 5, 15), rtol=1e-6)
    np.testing.assert_array_equal(stretched(ramp, np.array([4, 2]), np.array([4, 2]), STACK), ramp)


def test_labels_keep_their_share_of_the_piece():
    labels = np.array([[7, 7, 8, 9], [5, 6, -1, -1]])
    found = stretched_labels(labels, np.array([4, 2]), np.array([8, 1]), -1)
    assert found.tolist() == [[7, 7, 7, 7, 8, 8, 9, 9], [6, *[-1] * 7]]


def test_rates_are_within_the_tempo_and_pieces_keep_frames_for_their_tokens():
    lengths = np.full(500, 100)
    to = drawn_lengths(lengths, np.ones(500, int), 0.2, np.random.default_rng(1))
    assert 83 <= to.min() <= 85
    assert 123 <= to.max() <= 125
    assert drawn_lengths(lengths, np.full(500, 98), 0.2, np.random.default_rng(1)).min() == 98
    assert drawn_lengths(lengths, np.full(500, 120), 0.2, np.random.default_rng(1)).min() == 100  # as before


@pytest.mark.parametrize("kind", ["senones", "tokens"])
def test_a_loader_changes_the_tempo_of_features_and_labels_together(tmp_path, kind):
    made = utterances(20)
    features = features_artifact(tmp_path / "features", [("labelled", made)])
    if kind == "senones":
        labels = SenoneLabels(units_artifact(tmp_path / "units", made), STACK)
    else:
        labels = TokenLabels(Characters.of("".join(u["text"] for u in made)))

    def batches(tempo):
        found = shelves(features, ["labelled"], labels, STACK)
        loader = Loader(features, found, labels, FRONT, seed=1, batch_frames=60, tempo=tempo)
        return [loader.batch(0, n, offset=0) for n in range(len(loader.plan(0)))]

    changed = 0
    for before, after in zip(batches(0.0), batches(0.3), strict=True):
        assert before.keys == after.keys
        assert (after.lengths <= np.ceil(before.lengths / 0.7)).all()
        assert (after.lengths >= np.floor(before.lengths / 1.3)).all()
        assert after.features.shape[1] == after.lengths.max()
        changed += int((before.lengths != after.lengths).sum())
        if kind == "senones":
            assert ((after.targets["labels"] >= 0).sum(1) == after.lengths).all()
            for old, new, length in zip(before.targets["labels"], after.targets["labels"], after.lengths, strict=True):
                assert set(new[:length]) <= set(old[old >= 0])
        else:
            np.testing.assert_array_equal(before.targets["tokens"], after.targets["tokens"])
            assert (after.lengths >= np.minimum(before.lengths, labels.shortest(after.targets))).all()
    assert changed > 10


def test_tokens_need_frames_between_equal_neighbours_and_for_subsampling():
    speller = Characters.of("abc")
    tokens = [speller.encode(text) for text in ("abc", "aab")]
    arrays = {"tokens": np.array([[*t, 0] for t in tokens]), "token_lengths": np.array([3, 3])}
    assert TokenLabels(speller).shortest(arrays).tolist() == [3, 4]
    assert TokenLabels(speller, subsample=4, between=False).shortest(arrays).tolist() == [12, 12]
