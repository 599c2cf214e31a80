"""The report: its contents, that hostile text stays text, and its behaviour in a real browser."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chromium import fits_a_phone, looks, measured, opened, until, watch_words
from hypothesis import given
from hypothesis import strategies as st
from made_run import HOSTILE, artifact, make_run, said, spoken

from megahour.core.errors import ConfigError
from megahour.core.receipts import Counts, Manifest
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.report.figures import histogram, lines, nice_ticks
from megahour.report.gather import Histogram, curves, stage_facts, without_rates
from megahour.report.listen import choose, difference, examples
from megahour.report.markup import tag
from megahour.report.page import build
from megahour.report.params import ReportParams
from megahour.report.sections import listening, training
from megahour.report.stage import Report
from megahour.report.tables import size
from megahour.runner.console import duration

words = st.lists(st.sampled_from("abc"), max_size=7)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def html(run: dict[str, Artifact]) -> str:
    return build(ReportParams(title=f"a run {HOSTILE}"), run).html


# -- parts -----------------------------------------------------------------------------------------------------------


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e6), st.integers(2, 10))
def test_ticks_are_few_even_and_inside(spans: float, span: float, count: int) -> None:
    low = spans * span
    ticks = nice_ticks(low, low + span, count)
    assert len(ticks) <= count + 2
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    assert np.allclose(np.diff(ticks, 2), 0, atol=1e-6 * span)


@given(words, words)
def test_difference_is_a_shortest_alignment(reference: list[str], hypothesis: list[str]) -> None:
    from megahour.corpus.text.edit_distance import align

    found = difference(reference, hypothesis)
    assert [r for kind, r, _ in found if kind != "ins"] == reference
    assert [h for kind, _, h in found if kind != "del"] == hypothesis
    assert all((r == h) == (kind == "ok") for kind, r, h in found)
    assert sum(kind != "ok" for kind, _, _ in found) == align(reference, hypothesis).errors


@given(st.text())
def test_text_and_attributes_come_back_as_they_were(hostile: str) -> None:
    seen: list[Any] = []

    class Reader(HTMLParser):
        def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
            seen.append((name, dict(attributes)))

    Reader(convert_charrefs=True).feed(tag("p", hostile, title=hostile))
    assert [name for name, _ in seen] == ["p"]
    # A parser reads line ends and NUL its own way; all else is the same.
    assert re.sub(r"[\r\n\0�]", "", seen[0][1]["title"]) == re.sub(r"[\r\n\0�]", "", hostile)


def test_conditions_take_turns() -> None:
    keys = {**dict.fromkeys(range(50), "clean"), 100: "noisy", 101: "noisy"}
    chosen = choose(keys, 6, seed=1)
    assert sorted(keys[key] for key in chosen) == ["clean"] * 4 + ["noisy"] * 2
    assert chosen == choose(dict(reversed(keys.items())), 6, seed=1)
    assert chosen != choose(keys, 6, seed=2)


def test_histogram_counts_everything_once() -> None:
    found = Histogram(np.arange(0, 5.0))
    found.add("a", np.array([0.5, 1.5, 1.5, 99.0, np.nan]))
    found.add("a", np.array([2.5]))
    assert found.series["a"].tolist() == [1, 2, 1, 1]
    assert histogram(found.edges, {"a": found.series["a"]}, x_label="x", y_label="y", label="l").count("<rect") == 4


def test_a_curve_with_one_point_is_drawn() -> None:
    assert "<circle" in lines({"student": [(100.0, 0.5)]}, x_label="x", y_label="y", label="l")


def test_units_are_for_people() -> None:
    assert [duration(s) for s in (0.04, 59.6, 200, 3900)] == ["0.0 s", "1 min 00 s", "3 min 20 s", "1 h 05 min"]
    assert [size(n) for n in (12, 1500, 2.5e9)] == ["12 B", "1.5 kB", "2.5 GB"]


# -- facts -----------------------------------------------------------------------------------------------------------


def test_facts_are_the_receipts(run: dict[str, Artifact]) -> None:
    facts = stage_facts("recordings", run["recordings"])
    assert (facts.came_in, facts.kept, facts.bad) == (40, 36, 2)
    assert facts.dropped == {"licence": 2, "empty-transcript": 1, "truncated-audio": 1}
    assert facts.core_hours == pytest.approx(37.5 * 2 / 3600)  # seconds and workers of timings/total.json


def test_curves_of_a_student_are_split_by_data_set(run: dict[str, Artifact]) -> None:
    found = curves(run)
    assert set(found["held_out_accuracy"]) == {"baseline", "teacher", "student"}
    assert set(found["loss"]) == {"baseline", "teacher", "student, unlabelled", "student, labelled"}
    assert found["loss"]["baseline"][-1][0] == 100.0


def test_a_model_in_parts_is_named_where_its_error_rates_would_be(tmp_path: Path, run: dict[str, Artifact]) -> None:
    def model(name: str, shard: int, tokens: list[str]) -> Artifact:
        made = Artifact(tmp_path / name)
        with ShardWriter(made, 0, "f") as out:
            out.json({"tokens": tokens}, ".model.json")
            receipts = [out.commit()]
        given = {"parallel": {"shard": shard}}
        finish(made, receipts, Manifest("train", 1, "f", content_digest(receipts, {}), given, {}, 1, Counts(), {}))
        return made

    whole, parts, senones = model("whole", 1, ["a"]), model("parts", 4, ["a"]), model("senones", 4, [])
    assert without_rates({"baseline": whole, "student": parts, "teacher": senones}) == ["student"]
    assert "while student trained in parts" in str(training(curves(run), ["student"]))
    assert "in parts" not in str(training(curves(run)))


def test_examples_are_scored_utterances_with_their_own_sound(run: dict[str, Artifact]) -> None:
    found = examples(run, count=9, longest_s=3.0, seed=0)
    assert len(found) == 9
    assert {example.condition for example in found} == {"clean", "office", "noisy"}
    for example in found:
        assert example.key >= 10  # the score knows 10 to 59
        assert example.seconds <= 3.0
        assert example.flac.startswith(b"fLaC")
        assert set(example.hypotheses) == {"baseline", "student"}
        assert example.words[-1].end_s == pytest.approx(example.seconds - 0.1, abs=0.01)
        middle = [int(240 * (w.start_s + w.end_s) / 2 / example.seconds) for w in example.words]
        assert min(example.peaks[middle]) > 5 * example.peaks[0]  # a tone at each word, silence before the first


def test_without_scores_utterances_of_all_shards_can_be_heard(run: dict[str, Artifact]) -> None:
    found = examples({"utterances": run["utterances"]}, count=4, longest_s=9.0, seed=0)
    assert [example.key for example in found] == [0, 15, 30, 45]
    assert all(not example.hypotheses for example in found)


# -- page ------------------------------------------------------------------------------------------------------------


def test_the_stage_writes_the_page_and_its_headline_figures(run: dict[str, Artifact], tmp_path: Path) -> None:
    from megahour.engine.local import LocalEngine
    from megahour.runner.runner import run_stage

    with LocalEngine(workers=1) as engine:
        output = Artifact(tmp_path / "report")
        manifest = run_stage(Report(), ReportParams(price_per_core_hour=36.0), run, output, engine)
    assert manifest.summary["werr"] == pytest.approx(1 - 0.151 / 0.212)
    assert manifest.summary["cost"] == pytest.approx(36 * manifest.summary["core_hours"], rel=1e-3)
    page = output.read_bytes(0, ".html").decode()
    assert "28.8 %" in page
    assert page.startswith("<!doctype html>")


def test_every_subset_of_roles_makes_a_page(run: dict[str, Artifact]) -> None:
    for role, made in run.items():
        assert f">{role.replace('_', ' ')}" in build(ReportParams(), {role: made}).html
    with pytest.raises(ConfigError, match="about nothing"):
        Report().check(ReportParams(), [])


def test_a_worse_student_is_not_called_a_win(run: dict[str, Artifact], tmp_path: Path) -> None:
    row = {"condition": "all", "utterances": 9, "words": 90, "wer_baseline": 0.1, "wer_student": 0.12, "werr": -0.2}

    def fill(out: ShardWriter) -> None:
        out.json({"table": [row]}, ".json")
        out.table(pa.table({"key": pa.array([], pa.int64()), "reference": pa.array([], pa.string())}))

    page = build(ReportParams(examples=0), {"score": artifact(tmp_path, "score", "score", [fill])}).html
    assert '<div class="card loss"><b>-20.0 %' in page
    assert '<td class="loss"' in page


def test_hostile_text_stays_text(html: str) -> None:
    """Transcript, hypotheses, title and quarantine hold script tags: the page has its own script and no other."""
    names: list[str] = []
    kinds: list[str | None] = []

    class Reader(HTMLParser):
        def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
            names.append(name)
            kinds.extend([dict(attributes).get("type")] if name == "script" else [])
            assert not [a for a, _ in attributes if a.startswith("on")]

    Reader().feed(html)
    assert kinds == ["application/json", None]
    assert "img" not in names
    assert "&lt;script&gt;alert(1)" in html


def test_the_page_refers_to_nothing_outside(html: str) -> None:
    assert "http" not in re.sub(r"data:audio/flac;base64,[A-Za-z0-9+/=]+|http-equiv", "", html)
    assert "default-src 'none'" in html


# -- browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(html: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page in headless Chromium."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, "utf-8")
    with opened(path, 1180) as tab:
        yield tab


def test_charts_are_drawn(page: Any) -> None:
    charts = page.eval_on_selector_all("svg[aria-label]", "all => all.map(e => e.getAttribute('aria-label'))")
    assert charts == [
        "Word error rates by condition",
        "Starts of words",
        "Ends of words",
        "Utterances by duration",
        "Alignment confidence",
        "held-out frame accuracy",
        "held-out loss",
        "training frame accuracy",
        "training loss",
    ]
    boxes = page.eval_on_selector_all("svg[aria-label]", "all => all.map(e => e.getBoundingClientRect().height)")
    assert min(boxes) > 100


def test_play_starts_the_sound_and_lights_the_words_in_turn(page: Any) -> None:
    card = page.locator(".utterance").first
    spoken = card.locator(".word").all_inner_texts()
    watch_words(page, ".utterance .word")
    card.locator(".play").click()
    until(page, "document.querySelector('.utterance audio').currentTime > 0.15")
    until(page, "lit.length >= 3")
    lit = [each["word"] for each in page.evaluate("lit")]
    assert lit == sorted(set(lit)), spoken
    other = page.locator(".utterance").nth(1)
    other.locator(".word").nth(2).click()  # starts at that word, and stops the first
    start = float(other.locator(".word").nth(2).get_attribute("data-start"))
    until(page, f"document.querySelectorAll('.utterance audio')[1].currentTime > {start} + 0.05")
    assert page.evaluate("document.querySelector('.utterance audio').paused")
    # In one step, as the clip is short and may have ended on a busy machine.
    pause = "const b = document.querySelectorAll('.utterance .play')[1]; if (b.matches('.on')) b.click();"
    page.evaluate(f"() => {{ {pause} }}")
    assert page.evaluate("document.querySelectorAll('.utterance audio')[1].paused")


def test_a_click_on_a_head_sorts_and_the_total_stays_last(page: Any) -> None:
    table = page.locator("#errors table")
    names = "e => [...e.tBodies[0].rows].map(r => r.cells[0].textContent)"
    assert table.evaluate(names) == ["clean", "office", "noisy", "all"]
    head = table.locator("th", has_text="WERR")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert table.evaluate(names) == ["noisy", "office", "clean", "all"]
    table.locator("th", has_text="Condition").locator("button").click()
    assert table.evaluate(names) == ["clean", "noisy", "office", "all"]
    table.locator("th", has_text="Condition").locator("button").click()
    assert table.evaluate(names) == ["office", "noisy", "clean", "all"]
    flow = page.locator("#flow table").first
    flow.locator("th", has_text="In").first.locator("button").click()
    values = flow.evaluate("e => [...e.tBodies[0].rows].map(r => Number(r.cells[1].dataset.value))")
    assert values == sorted(values)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark(page: Any, scheme: str) -> None:
    page.evaluate("document.querySelector('.word').classList.add('lit')")
    looks(page, scheme)
    page.evaluate("document.querySelector('.word').classList.remove('lit')")


def test_it_fits_a_phone(page: Any) -> None:
    fits_a_phone(page)
    wide = page.eval_on_selector_all(".aligned", "all => Math.max(...all.map(e => e.getBoundingClientRect().right))")
    assert wide <= 360  # words are read without scrolling their table
    page.set_viewport_size({"width": 1180, "height": 900})


def test_all_that_can_be_clicked_can_be_reached_by_keyboard(page: Any) -> None:
    assert measured(page, "unreachable") == []


def test_charts_say_in_words_what_they_show(page: Any) -> None:
    """Each has a name, a description, titles of its axes, and series of different shapes."""
    charts = page.eval_on_selector_all(
        "svg[aria-label]",
        """all => all.map(e => ({
            told: e.querySelector('desc').textContent, axes: [...e.querySelectorAll('.axis')].map(a => a.textContent),
            marks: [...e.querySelectorAll('.line, .interval')].map(g => [
                g.querySelector('.mark').tagName + (g.querySelector('.mark').getAttribute('d') || '').split('L').length,
                g.matches('.again')].join()),
            legend: [...e.parentElement.querySelectorAll('.legend span')].map(s => s.textContent) }))""",
    )
    assert charts[0]["told"].startswith("clean, baseline: 12 (10.8 to 13.4). clean, student: 8 (7.04 to 8.8).")
    assert charts[0]["axes"] == ["word error rate, %"]
    for chart in charts[1:]:
        assert chart["told"]
        assert len(chart["axes"]) == 2
    losses = charts[-1]
    assert losses["axes"] == ["training loss, nats", "share of the training, %"]
    assert losses["legend"] == ["baseline", "teacher", "student, unlabelled", "student, labelled"]
    assert len(set(losses["marks"])) == len(losses["legend"])


def test_every_hypothesis_stands_word_by_word_below_its_reference(page: Any) -> None:
    """In the slots of an utterance, from left to right: the reference, and of each system its words and its errors."""
    found = page.eval_on_selector_all(
        "#readings .aligned",
        """all => all.map(e => [...e.querySelectorAll('.slot:not(.who)')].map(
            slot => [...slot.children].map(w => [w.className, w.textContent.replace('\u00a0', '')])))""",
    )
    assert len(found) == 50
    for key, slots in zip(range(10, 60), found, strict=True):
        reference = " ".join(spoken(key)[0]).split()
        assert [slot[0][1] for slot in slots if slot[0][1]] == reference
        for place, system in enumerate(("baseline", "student"), start=1):
            shown = [(kind or "ok", word) for kind, word in (slot[place] for slot in slots) if word]
            steps = difference(reference, said(key, system).split())
            assert shown == [(kind, word if kind == "del" else other) for kind, word, other in steps]


# -- by keyboard -----------------------------------------------------------------------------------------------------


def heard(key: int) -> list[str]:
    return [said(key, system) for system in ("baseline", "student")]


FOCUS = "document.activeElement"


def tab_to(page: Any, selector: str) -> None:
    """Presses Tab until the element has the focus, and checks that the focus is visible."""
    for _ in range(400):
        page.keyboard.press("Tab")
        if page.evaluate(f"{FOCUS}.matches({selector!r})"):
            assert page.evaluate(f"getComputedStyle({FOCUS}).outlineStyle") == "solid"
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_wave_and_words_are_played_by_keyboard(page: Any) -> None:
    page.locator("nav a").first.focus()
    time_s = "document.querySelector('.utterance audio').currentTime"
    tab_to(page, ".utterance .wave")
    assert page.evaluate(f"{FOCUS}.getAttribute('role')") == "slider"
    moves = (
        ("Home", 0.0),
        ("ArrowRight", 0.5),
        ("PageUp", 2.5),
        ("ArrowLeft", 2.0),
        ("PageDown", 0.0),
        ("ArrowUp", 0.5),
    )
    for key, expected in moves:
        page.keyboard.press(key)
        until(page, f"{FOCUS}.getAttribute('aria-valuenow') === '{expected:.1f}'")
        assert page.evaluate(time_s) == pytest.approx(expected)
    assert page.evaluate(f"{FOCUS}.getAttribute('aria-valuetext')").startswith("0.5 of ")
    page.keyboard.press("Space")
    until(page, f"{time_s} > 0.6")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.utterance audio').paused")
    page.keyboard.press("Tab")
    words = "[...document.querySelectorAll('.utterance')][0].querySelectorAll('.word')"
    assert page.evaluate(f"{FOCUS} === {words}[0]")
    assert page.evaluate(f"getComputedStyle({FOCUS}).outlineStyle") == "solid"
    for key, word in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("Home", 0)):
        page.keyboard.press(key)
        assert page.evaluate(f"{FOCUS} === {words}[{word}]")
    page.keyboard.press("End")
    assert page.evaluate(f"{FOCUS} === {words}[{words}.length - 1]")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    start = float(page.evaluate(f"{FOCUS}.dataset.start"))
    until(page, f"{time_s} > {start} || document.querySelector('.utterance audio').ended")
    page.evaluate("document.querySelector('.utterance audio').pause()")
    page.keyboard.press("Tab")  # the group is one stop: the next is behind all of its words
    assert page.evaluate(f"{FOCUS}.closest('.utterance') !== document.querySelector('.utterance')")


def test_tables_are_sorted_and_filtered_by_keyboard(page: Any) -> None:
    page.locator("nav a").first.focus()
    tab_to(page, "#errors th:nth-child(6) button")
    page.keyboard.press("Space")
    assert page.evaluate(f"{FOCUS}.closest('th').getAttribute('aria-sort')") == "ascending"
    page.keyboard.press("Enter")
    assert page.evaluate(f"{FOCUS}.closest('th').getAttribute('aria-sort')") == "descending"
    tab_to(page, "#search")
    page.keyboard.type("harbour")
    with_it = [k for k in range(10, 60) if any("harbour" in words for words in (" ".join(spoken(k)[0]), *heard(k)))]
    some = f"document.querySelector('#found').textContent.startsWith('{len(with_it)} of 50')"
    until(page, some)
    tab_to(page, "#filters select[data-column=condition]")
    page.keyboard.press("n")
    until(page, f"!{some}")
    conditions = page.eval_on_selector_all("#readings tr.about", "all => all.map(r => r.cells[2].textContent)")
    assert set(conditions) == {"noisy"}
    tab_to(page, "#reset")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#found').textContent.startsWith('50 of 50')")
    tab_to(page, "#readings button.play")
    page.keyboard.press("Enter")
    number = page.evaluate(f"{FOCUS}.dataset.example")
    until(page, f"!document.querySelectorAll('.utterance audio')[{number}].paused")
    until(page, f"{FOCUS}.getAttribute('aria-label') === 'Pause'")  # the button follows the player's event
    page.keyboard.press("Enter")
    until(page, f"document.querySelectorAll('.utterance audio')[{number}].paused")


def test_words_of_utterances_cut_without_an_alignment_have_no_place_in_the_sound(run: dict[str, Artifact]) -> None:
    found = examples({"utterances": run["utterances"]}, count=1, longest_s=9.0, seed=0)
    untimed = [replace(found[0], words=[replace(word, start_s=None, end_s=None) for word in found[0].words])]
    page = str(listening(untimed))
    assert all(escape(word.text) in page for word in untimed[0].words)
    assert "data-start" not in page
    assert 'class="mark"' not in page
    assert "data-start" in str(listening(found))
