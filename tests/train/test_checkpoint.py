"""Checkpoints: exact, two generations, and a damaged one is reported and passed over."""

import logging

import torch

from megahour.train import checkpoint


def tensors(value):
    return {"w": torch.full((3,), float(value)), "step": torch.tensor(value)}


def test_the_newest_is_read_back_exactly_and_two_are_kept(tmp_path):
    for step in (1, 9, 10):
        checkpoint.save(tmp_path, step, tensors(step), {"loss": 0.1 + step})
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.state == {"loss": 10.1}
    assert torch.equal(found.tensors["w"], tensors(10)["w"])
    assert found.tensors["step"].item() == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{step:010d}{suffix}" for step in (9, 10) for suffix in (".json", ".safetensors")
    ]


def test_nothing_is_found_in_an_empty_or_missing_folder(tmp_path):
    assert checkpoint.load(tmp_path) is None
    assert checkpoint.load(tmp_path / "missing") is None


def test_each_kind_of_damage_is_reported_and_the_previous_one_used(tmp_path, caplog):
    def flip(data):
        return data[:-1] + bytes([data[-1] ^ 1])

    damages = [
        (".safetensors", flip),
        (".safetensors", lambda data: data[:-5]),
        (".json", lambda data: data[:-5]),
        (".json", lambda data: b"[]"),
    ]
    for number, (suffix, damage) in enumerate(damages):
        folder = tmp_path / str(number)
        for step in (1, 2):
            checkpoint.save(folder, step, tensors(step), {"step": step})
        path = folder / f"{2:010d}{suffix}"
        path.write_bytes(damage(path.read_bytes()))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = checkpoint.load(folder)
        assert found is not None
        assert found.state == {"step": 1}
        assert "damaged" in caplog.text
        assert path.stem in caplog.text


def test_tensors_without_their_json_are_as_good_as_absent(tmp_path):
    checkpoint.save(tmp_path, 1, tensors(1), {})
    (tmp_path / f"{2:010d}.safetensors").write_bytes(b"half")
    (tmp_path / f"{3:010d}.json.tmp").write_bytes(b"half")
    assert checkpoint.load(tmp_path).tensors["step"].item() == 1
    checkpoint.save(tmp_path, 4, tensors(4), {})
    assert {path.stem for path in tmp_path.iterdir()} == {f"{1:010d}", f"{4:010d}"}
