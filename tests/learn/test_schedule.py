"""The order of supervised and scheduled training."""

import pytest

from megahour.learn.schedule import learning_rate, scheduled, supervised


def batches(data, epoch):
    return 10 if data == "unlabelled" else 4


def test_supervised_epochs_rotate_offsets_and_end_on_whole_utterances():
    phases = supervised(batches, [0, 1, 2], epochs=4, whole_epochs=2, chunk=32)
    assert [phase.offset for phase in phases] == [0, 1, 2, 0, 1, 2]
    assert [phase.chunk for phase in phases] == [32, 32, 32, 32, 0, 0]
    assert [len(phase) for phase in phases] == [4] * 6
    assert {phase.data for phase in phases} == {"labelled"}


def test_sub_epochs_part_the_unlabelled_data_and_labelled_passes_follow_each():
    phases = scheduled(batches, [0, 1, 2], epochs=2, sub_epochs=3, whole_sub_epochs=2, chunk=32, labelled_gain=1.2)
    unlabelled, labelled = phases[::2], phases[1::2]
    assert {phase.data for phase in unlabelled} == {"unlabelled"}
    assert {phase.data for phase in labelled} == {"labelled"}
    for epoch in (0, 1):
        own = [phase for phase in unlabelled if phase.epoch == epoch]
        assert [n for phase in own for n in range(phase.first, phase.last)] == list(range(10))
        assert {phase.offset for phase in own} == {epoch}
    assert [phase.offset for phase in labelled] == [0, 1, 2, 0, 1, 2]
    assert [phase.chunk for phase in phases] == [32] * 8 + [0] * 4
    assert {phase.gain for phase in unlabelled} == {1.0}
    assert {phase.gain for phase in labelled} == {1.2}


def test_the_rate_rises_then_decays_exponentially():
    rates = [learning_rate(step, 100, 1e-2, 1e-4, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(1e-3)
    assert max(rates) in rates[8:11]
    assert rates[60] / rates[50] == pytest.approx(rates[90] / rates[80])
    assert learning_rate(100, 100, 1e-2, 1e-4, 0.0) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("cosine", [1.0, 0.854, 0.5, 0.147, 0.001]),
        ("linear", [1.0, 0.75, 0.5, 0.251, 0.002]),
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("stable", [1.0, 1.0, 1.0, 1.0, 0.006]),
    ],
)
def test_each_schedule_falls_in_its_own_way(schedule, rates):
    steps = [0, 250, 500, 750, 999]
    found = [learning_rate(step, 1000, 1.0, 0.001, 0.0, schedule) for step in steps]
    assert found == pytest.approx(rates, abs=1e-3)


def test_the_inverse_root_falls_from_the_end_of_the_rise():
    rates = [learning_rate(step, 1000, 1.0, 0.001, 0.1, "inverse_sqrt") for step in (0, 49, 99, 399)]
    assert rates == pytest.approx([0.01, 0.5, 1.0, 0.5])
