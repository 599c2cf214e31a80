"""Batches read from features shards: right frames, right labels, each utterance once."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from made_artifacts import MELS, features_artifact, units_artifact, utterances, write_artifact

from megahour.batches.augment import WARPS, Augment, warp_matrices
from megahour.batches.index import shelves
from megahour.batches.labels import SenoneLabels, TopK
from megahour.batches.loader import Loader
from megahour.batches.token_labels import TokenLabels
from megahour.batches.window import Front
from megahour.core.errors import StageError
from megahour.core.schemas import TARGETS
from megahour.features.cepstra_mels import mel_matrix
from megahour.units.tokens import Characters

STACK = 3
FRONT = Front(STACK, np.full(MELS, 0.5, np.float32), np.full(MELS, 2.0, np.float32))


@pytest.fixture(scope="module")
def made():
    return utterances(40)


@pytest.fixture(scope="module")
def features(tmp_path_factory, made):
    parts = [("labelled", made[:15]), ("other", made[15:20]), ("labelled", made[20:])]
    return features_artifact(tmp_path_factory.mktemp("features"), parts)


@pytest.fixture(scope="module")
def senones(tmp_path_factory, made):
    return SenoneLabels(units_artifact(tmp_path_factory.mktemp("units"), made), STACK)


def make_loader(features, labels, **options):
    chosen = {"seed": 1, "batch_frames": 60, "window_shards": 1, **options}
    return Loader(features, shelves(features, ["labelled"], labels, STACK), labels, FRONT, **chosen)


@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_an_epoch_holds_every_frame_once_with_its_own_label(features, senones, made, chunk, offset):
    loader = make_loader(features, senones)
    frames, labels = Counter(), Counter()
    for number in range(len(loader.plan(0))):
        batch = loader.batch(0, number, offset=offset, chunk=chunk)
        valid = np.arange(batch.features.shape[1])[None] < batch.lengths[:, None]
        assert batch.features.dtype == np.float32
        assert not batch.features[~valid].any()
        assert (batch.targets["labels"] >= 0).tolist() == valid.tolist()
        for b, key in enumerate(batch.keys):
            frames.update((key, row.tobytes()) for row in batch.features[b, : batch.lengths[b]])
            labels.update((key, int(label)) for label in batch.targets["labels"][b, : batch.lengths[b]])
    expected_frames, expected_labels = Counter(), Counter()
    for utterance in made[:15] + made[20:]:
        x = (utterance["features"].astype(np.float32) - 0.5) * 2
        for t in range(offset, len(x) - STACK + 1, STACK):
            expected_frames[(utterance["key"], x[t : t + STACK].tobytes())] += 1
            expected_labels[(utterance["key"], int(utterance["senones"][t + 1]))] += 1
    assert frames == expected_frames
    assert labels == expected_labels


def test_a_batch_is_the_same_whenever_it_is_asked_for(features, senones):
    augment = Augment(1, 4, 1, 2, 0.1, 0.5)
    forward = make_loader(features, senones, augment=augment)
    count = len(forward.plan(0))
    seen = [forward.batch(0, number, offset=0, chunk=7) for number in range(count)]
    resumed = make_loader(features, senones, augment=augment)
    for number in (count - 1, 0, count // 2):
        again = resumed.batch(0, number, offset=0, chunk=7)
        assert again.keys == seen[number].keys
        np.testing.assert_array_equal(again.features, seen[number].features)


def test_two_views_are_augmented_apart(features, senones):
    """The first view equals a batch of one view."""
    augment = Augment(noise=1.0)
    batch = make_loader(features, senones, augment=augment, two_views=True).batch(0, 0, offset=0)
    np.testing.assert_array_equal(
        batch.features, make_loader(features, senones, augment=augment).batch(0, 0, offset=0).features
    )
    clean = make_loader(features, senones, two_views=True).batch(0, 0, offset=0)
    np.testing.assert_array_equal(clean.targets["view"], clean.features)
    view = batch.targets["view"]
    assert view.shape == batch.features.shape
    for b, length in enumerate(batch.lengths):
        assert not np.array_equal(view[b, :length], batch.features[b, :length])
        assert not np.array_equal(view[b, :length], clean.features[b, :length])
        assert not view[b, length:].any()


def test_epochs_differ_in_their_order(features, senones):
    loader = make_loader(features, senones)
    orders = [[key for n in range(len(loader.plan(e))) for key in loader.batch(e, n, offset=0).keys] for e in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_short_and_unlabelled_utterances_are_counted_and_left_out(tmp_path, made):
    short = {**made[0], "key": 900, "frames": 4, "features": made[0]["features"][:4], "senones": made[0]["senones"][:4]}
    features = features_artifact(tmp_path / "f", [("labelled", [*made[:5], short])])
    labels = SenoneLabels(units_artifact(tmp_path / "u", [*made[:3], short]), STACK)
    dropped = Counter()
    (shelf,) = shelves(features, ["labelled"], labels, STACK, dropped=dropped)
    assert shelf.rows.tolist() == [0, 1, 2]
    assert (shelf.utterances, shelf.frames) == (3, sum(u["frames"] for u in made[:3]))
    assert shelf.bits.nbytes == 1  # a bit an utterance is all that stays in memory
    assert dropped == {"too-short": 1, "no-target": 2, "held-out": 0}


def test_alignments_of_another_length_are_named(tmp_path, made):
    wrong = [{**made[0], "frames": 10, "senones": made[0]["senones"][:10]}]
    features = features_artifact(tmp_path / "f", [("labelled", made[:1])])
    loader = make_loader(features, SenoneLabels(units_artifact(tmp_path / "u", wrong), STACK))
    with pytest.raises(StageError, match="10 aligned"):
        loader.batch(0, 0, offset=0)


@pytest.mark.parametrize("senone", [-1, 5])
def test_a_senone_that_the_units_have_not_is_named(tmp_path, made, senone):
    senones = made[0]["senones"].copy()
    senones[7] = senone
    features = features_artifact(tmp_path / "f", [("labelled", made[:1])])
    units = units_artifact(tmp_path / "u", [{**made[0], "senones": senones}])
    with pytest.raises(StageError, match=f"shard 0: utterance 0 has senone {senone}, the units have 5"):
        make_loader(features, SenoneLabels(units, STACK)).batch(0, 0, offset=0)


def test_characters_go_with_whole_utterances_and_impossible_texts_are_left_out(tmp_path, made):
    crowded = {**made[1], "text": "a" * 40}
    foreign = {**made[2], "text": "a z"}
    features = features_artifact(tmp_path / "f", [("labelled", [made[0], crowded, foreign, {**made[3], "text": ""}])])
    loader = make_loader(features, TokenLabels(Characters.of(["abcde"])))
    batch = loader.batch(0, 0, offset=0)
    assert batch.keys == [made[0]["key"]]
    assert batch.targets["tokens"][0].tolist() == [1 + "abcde".index(c) for c in made[0]["text"]]
    assert batch.targets["token_lengths"].tolist() == [len(made[0]["text"])]


def targets_artifact(folder, made, offsets, k=2):
    """Targets whose logits say which (utterance, offset, frame) they belong to."""
    rows = []
    for utterance in made:
        for offset in offsets:
            n = (utterance["frames"] - offset) // STACK
            logits = np.stack([np.full(n, 100 * offset + utterance["key"]), np.arange(n)], axis=1)
            rows.append([utterance["key"], offset, n, [1, 0] * n, logits.reshape(-1).astype(np.float16)])
    table = write_table(rows)
    return write_artifact(
        folder, [({"features_shard": "0"}, {".arrow": table})], {"top_k": k, "offsets": offsets, "outputs": 5}
    )


def write_table(rows):
    import pyarrow as pa

    return pa.table({f.name: pa.array([row[i] for row in rows], f.type) for i, f in enumerate(TARGETS)}, schema=TARGETS)


def test_top_k_targets_are_those_of_the_chunk_and_offset(tmp_path, made):
    features = features_artifact(tmp_path / "f", [("labelled", made[:6])])
    loader = make_loader(features, TopK(targets_artifact(tmp_path / "t", made[:6], [0, 2])))
    for number in range(len(loader.plan(0))):
        batch = loader.batch(0, number, offset=2, chunk=4)
        for b, key in enumerate(batch.keys):
            own = batch.targets["logits"][b, : batch.lengths[b]]
            assert set(own[:, 0]) == {200 + key}
            assert (np.diff(own[:, 1]) == 1).all()
            assert own[0, 1] % 4 == 0
            assert batch.targets["indices"][b, 0].tolist() == [1, 0]
    with pytest.raises(StageError, match="offset 1"):
        loader.batch(0, 0, offset=1)


def test_masks_cover_bands_of_all_stacked_frames_and_spare_most_of_the_time():
    features = np.ones((200, 20, STACK * MELS), np.float32)
    Augment(1, 99, 1, 2).apply(features, np.full(200, 20), np.ones(MELS, np.float32), np.random.default_rng(0))
    joined = features.reshape(200, 20, STACK, MELS)
    assert (joined == joined[:, :, :1]).all()
    silent = (joined == 0).all(axis=(2, 3)).sum(axis=1)
    assert silent.max() == 5
    assert silent.min() == 0
    assert 0.2 < (joined[:, :, 0] == 0).mean() < 0.5


def test_parts_of_a_batch_make_the_whole(features, senones):
    batch = make_loader(features, senones).batch(0, 0, offset=0)
    parts = [batch.part(r, 3) for r in range(3)]
    assert sorted(key for part in parts for key in part.keys) == sorted(batch.keys)
    assert sum(int((part.targets["labels"] >= 0).sum()) for part in parts) == int(batch.lengths.sum())


def test_warps_move_mels_up_or_down_and_the_middle_one_changes_nothing():
    matrices = warp_matrices(10, 0.2)
    ramp = np.arange(10, dtype=np.float32)
    np.testing.assert_allclose(ramp @ matrices[0], 0.8 * ramp, rtol=1e-6)
    np.testing.assert_allclose(ramp @ matrices[WARPS // 2], ramp, rtol=1e-6)
    np.testing.assert_allclose(ramp @ matrices[-1], np.minimum(1.2 * ramp, 9), rtol=1e-6)
    features = np.zeros((4, 6, STACK * MELS), np.float32)
    features[:, :3] = np.tile(np.arange(MELS), STACK)
    Augment(warp=0.3).apply(features, np.full(4, 3), np.ones(MELS, np.float32), np.random.default_rng(0))
    assert not features[:, 3:].any()
    assert len({row.tobytes() for row in features[:, 0]}) > 1


def test_another_channel_is_a_smooth_curve_on_all_frames_of_a_piece():
    features = np.zeros((300, 6, STACK * 40), np.float32)
    Augment(channel=0.5).apply(features, np.full(300, 4), np.full(40, 2.0, np.float32), np.random.default_rng(0))
    curves = features.reshape(300, 6, STACK, 40)
    assert not curves[:, 4:].any()
    assert (curves[:, :4] == curves[:, :1, :1]).all()
    assert curves[:, 0, 0].std() == pytest.approx(2.0 * 0.5, rel=0.1)
    assert np.abs(np.diff(curves[:, 0, 0], axis=1)).mean() < 0.2 * np.abs(curves[:, 0, 0]).mean()
    assert np.abs(curves[:, 0, 0].mean(axis=1)).max() < 1e-5, "loudness is not changed"


def test_cepstra_change_as_the_mels_that_they_stand_for():
    rng = np.random.default_rng(0)
    to_mels, scale = mel_matrix(13, 40), np.linspace(0.5, 2, 13, dtype=np.float32)
    cepstra = rng.normal(size=(3, 8, 2 * 13)).astype(np.float32)
    lengths = np.full(3, 8)
    mels = ((cepstra.reshape(3, 8, 2, 13) / scale) @ to_mels).reshape(3, 8, -1)
    changes = Augment(warp=0.2, mel_bands=1, mels=6, noise=0.5, channel=0.3)
    replace(changes, cepstra=True).apply(cepstra, lengths, scale, np.random.default_rng(1))
    changes.apply(mels, lengths, np.ones(40, np.float32), np.random.default_rng(1))
    again = (mels.reshape(3, 8, 2, 40) @ np.linalg.pinv(to_mels)) * scale
    np.testing.assert_allclose(cepstra.reshape(3, 8, 2, 13), again, atol=1e-4)


def test_cepstra_that_nothing_changes_stay_as_they_are():
    cepstra = np.random.default_rng(0).normal(size=(2, 5, 3 * 13)).astype(np.float32)
    before = cepstra.copy()
    same = Augment(channel=1e-9, cepstra=True)
    same.apply(cepstra, np.full(2, 5), np.linspace(0.5, 2, 13, dtype=np.float32), np.random.default_rng(0))
    np.testing.assert_allclose(cepstra, before, atol=1e-4)


def test_noise_raises_the_floor_and_keeps_the_mean_and_the_padding():
    rng = np.random.default_rng(0)
    clean = np.zeros((50, 30, STACK * MELS), np.float32)
    clean[:, :20] = rng.normal(0, 3, (50, 20, STACK * MELS))
    noisy = clean.copy()
    Augment(noise=1.0).apply(noisy, np.full(50, 20), np.full(MELS, 0.5, np.float32), np.random.default_rng(0))
    assert not noisy[:, 20:].any()
    mels = noisy[:, :20].reshape(50, -1, MELS)
    np.testing.assert_allclose(mels.mean(axis=1), clean[:, :20].reshape(50, -1, MELS).mean(axis=1), atol=1e-4)
    assert (mels.std(axis=1) < clean[:, :20].reshape(50, -1, MELS).std(axis=1)).all()
