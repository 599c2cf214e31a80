"""The explorer: its figures, that it is bounded and repeatable, and how it behaves in a real browser."""

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chromium import cpu_s, fits_a_phone, looks, measured, opened, until, watch_words
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from made_run import RATE_HZ, artifact, fill_model, fill_utterances, spoken
from made_set import HOSTILE, LONG, REASONS, make_set

from megahour.cli.main import app
from megahour.core.errors import ConfigError
from megahour.core.schemas import ALIGNED_SEGMENTS
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.report.clips import PEAKS, encode
from megahour.report.counters import Heaviest, Sample
from megahour.report.explorer import CELLS, Choice, _cells, explore, strips
from megahour.report.losses import examples, hours_by_reason, with_sound
from megahour.report.survey import median, survey

streams = st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(1, 50)), max_size=80)


def silent(done: int, shards: int) -> None:
    """A monitor that does nothing."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_set(tmp_path_factory.mktemp("set"))


@pytest.fixture(scope="module")
def html(data: Artifact) -> str:
    return explore(data, None, Choice(title=f"a set {HOSTILE}", clips=12), silent)


# -- bounded summaries -----------------------------------------------------------------------------------------------


@given(streams, st.integers(1, 12))
def test_hours_of_a_name_are_exact_or_too_low_within_the_stated_bound(
    stream: list[tuple[str, int]], capacity: int
) -> None:
    true: dict[str, float] = {}
    found = Heaviest(capacity)
    for start in range(0, len(stream), 7):
        found.add((name, 1, seconds, "") for name, seconds in stream[start : start + 7])
    for name, seconds in stream:
        true[name] = true.get(name, 0.0) + seconds
    assert found.seconds == sum(true.values())
    assert len(found.tallies) <= capacity
    assert found.missing_s <= sum(true.values()) / (capacity + 1)
    assert found.exact or len(true) > capacity
    for name, seconds in true.items():
        told = found.tallies[name].seconds if name in found.tallies else 0.0
        assert seconds - found.missing_s - 1e-9 <= told <= seconds + 1e-9


@given(st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=60), st.integers(0, 9), st.integers(1, 9))
def test_a_sample_does_not_depend_on_how_keys_lie_in_shards(keys: list[int], size: int, each: int) -> None:
    def chosen(parts: list[list[int]]) -> set[int]:
        sample = Sample(size, seed=3)
        for shard, part in enumerate(parts):
            sample.add(shard, np.array(part, np.int64))
        return {parts[shard][row] for shard, rows in sample.by_shard().items() for row in rows}

    cut = [keys[i : i + each] for i in range(0, len(keys), each)]
    assert chosen(cut) == chosen([keys]) == chosen(cut[::-1])
    assert len(chosen(cut)) == min(size, len(keys))


def test_the_survey_counts_every_row_and_every_unknown(data: Artifact) -> None:
    steps = []
    found = survey(data, rows=9, seed=0, advance=lambda done, shards: steps.append((done, shards)))
    table = [row for shard in range(2) for row in data.read_table(shard).to_pylist()]
    seconds = sum(row["samples"] / row["rate_hz"] for row in table)
    assert found.seconds == pytest.approx(seconds)
    assert steps == [(1, 2), (2, 2)]
    for name in ("language", "licence", "source", "speaker", "tier", "split"):
        told = {value: tally.records for value, tally in found.hours[name].tallies.items()}
        assert told == {value: sum(row[name] == value for row in table) for value in {row[name] for row in table}}
    unknown = sum(np.isnan(row["cer"]) for row in table)
    assert found.unknown["cer"] == unknown > 0
    assert found.histograms["cer"].total == 80 - unknown
    assert set(found.histograms["cer"].series) == {"clean", "dirty"}
    known = [row["cer"] for row in table if not np.isnan(row["cer"])]
    assert median(found.histograms["cer"]) == pytest.approx(np.median(known), abs=0.02)  # a bin


def test_sound_is_small_and_its_bytes_repeat() -> None:
    t = np.arange(22_050 * 3) / 22_050
    sound = (9000 * np.sin(2 * np.pi * 300 * t) * (t > 1.5)).astype(np.int16)
    clip = encode("a", sound, 22_050, "mp3")
    assert clip.data == encode("a", sound, 22_050, "mp3").data
    assert len(clip.data) < 0.2 * 2 * len(sound)
    assert clip.peaks.shape == (PEAKS,)
    assert clip.peaks[:190].max() == 0
    assert clip.peaks[210:].min() > 200
    assert encode("a", sound, 22_050, "flac").data.startswith(b"fLaC")
    assert encode("a", sound, 9000, "mp3").seconds == pytest.approx(len(sound) / 9000)  # MP3 knows no 9 kHz


# -- what was left out -----------------------------------------------------------------------------------------------


def test_each_reason_has_examples_that_can_be_heard(data: Artifact) -> None:
    recordings = Artifact(data.url.replace("utterances", "recordings"))
    found = examples(data, each=4, seed=0)
    assert {reason: len(here) for reason, here in found.items()} == dict.fromkeys(REASONS, 4)
    heard = with_sound(found, recordings, longest_s=0.25, coding="flac")
    for lost in (lost for here in heard.values() for lost in here):
        assert (lost.clip is None) == (lost.span is None)  # unspoken text has no place
        assert lost.clip is None or lost.clip.seconds == pytest.approx(0.25, abs=0.001)
    assert any(lost.clip for here in heard.values() for lost in here)
    cues = [lost for here in heard.values() for lost in here if lost.cue_s]
    assert cues
    for lost in cues:
        assert lost.cue is not None
        assert lost.cue_s == (500 * lost.cue[1] / RATE_HZ, (500 * lost.cue[1] + 8000) / RATE_HZ)
        assert lost.start_s == (1000 * lost.cue[1] / RATE_HZ if lost.cue[1] % 2 else lost.cue_s[0])
    of_files = examples(recordings, each=4, seed=0)
    assert of_files["truncated-audio"][0].name == HOSTILE
    (by_policy,) = of_files["licence-unknown"]
    assert (by_policy.name, by_policy.detail) == (f"talk {HOSTILE}", "ask Bob")
    assert set(survey(recordings, rows=0, seed=0, advance=silent).histograms["minutes"].series) == {"recordings"}


def test_recordings_that_an_alignment_refused_can_be_heard(data: Artifact, tmp_path: Path) -> None:
    """They had neither a name nor a sound."""
    recordings = Artifact(data.url.replace("utterances", "recordings"))
    index = recordings.read_table(0).to_pylist()

    def fill(out: ShardWriter) -> None:
        refused = [(row["key"], -1, False, "wrong-transcript", 0.0, 0, row["samples"], np.nan) for row in index[:2]]
        kept = [
            (index[2]["key"], 0, True, "", 0.9, 0, 8000, 0.1),
            (index[2]["key"], 1, False, "unspoken", 0, -1, -1, 9),
        ]
        columns = zip(*refused, *kept, strict=True)
        arrays = [pa.array(c, t) for c, t in zip(columns, ALIGNED_SEGMENTS.types, strict=True)]
        out.table(pa.Table.from_arrays(arrays, schema=ALIGNED_SEGMENTS), ".segments.parquet")
        out.came_in(3)
        out.kept()
        out.drop("wrong-transcript", 2)

    found = examples(artifact(tmp_path, "alignment", "align", [fill]), each=4, seed=0)
    heard = with_sound(found, recordings, longest_s=0.25, coding="flac")
    assert heard.keys() == {"wrong-transcript"}
    assert {lost.name for lost in heard["wrong-transcript"]} == {row["name"] for row in index[:2]}
    for lost in heard["wrong-transcript"]:
        assert lost.clip is not None
        assert lost.clip.seconds == pytest.approx(0.25, abs=0.001)


def test_hours_of_what_was_left_out(data: Artifact, html: str) -> None:
    recordings = Artifact(data.url.replace("utterances", "recordings"))
    hours, came_in = hours_by_reason(recordings, RATE_HZ)
    assert (hours, came_in) == ({"truncated-audio": 0.5, "licence-unknown": 0.0}, 2.0)
    of_utterances, _ = hours_by_reason(data, RATE_HZ)
    known = [9000 for i in range(60) if i % 3 == 0 and i % 2]  # of the others no one knows where they begin
    assert of_utterances[REASONS[0]] == pytest.approx(2 * sum(known) / RATE_HZ / 3600)
    assert "ingest: 0.50 h and 2 records left out" in html
    came_in = sum(receipt.stats.get("audio_s", 0.0) for receipt in data.receipts()) / 3600
    share = f"{100 * sum(of_utterances.values()) / came_in:.1f} %"
    assert f"<b>{share}</b><span>of the hours left out by this stage" in html
    assert re.search(r"truncated-audio</td>.*?0\.50</td>.*?25\.00 %</td>.*?>1</td>", html.replace("\n", ""))


def test_the_recordings_are_found_by_their_digest(data: Artifact, tmp_path: Path) -> None:
    """Whatever the folders are named: without them there are no sounds of what was left out, and no strips."""
    shutil.copytree(data.url, tmp_path / "mine")
    shutil.copytree(data.url.replace("utterances", "recordings"), tmp_path / "talks of May")
    assert "ingest: 0.50 h and 2 records left out" in explore(
        Artifact(tmp_path / "mine"), None, Choice(clips=1), silent
    )
    shutil.rmtree(tmp_path / "talks of May")
    assert "ingest: 0.50 h" not in explore(Artifact(tmp_path / "mine"), None, Choice(clips=1), silent)


def test_a_recording_as_a_strip(data: Artifact) -> None:
    recordings = Artifact(data.url.replace("utterances", "recordings"))
    rows = [{"recording": key % 3, "start_samples": 0, "rate_hz": RATE_HZ} for key in (2, 1, 2)]
    found = strips(data, rows, recordings)["strips"]
    length = recordings.read_table(0)["samples"][0].as_py()
    assert (found["at"], [seconds for seconds, _ in found["of"]]) == ([1, 0, 1], [round(length / RATE_HZ, 2)] * 2)
    lost = [1000 * i for i in range(60) if i % 3 == 2 and i % 2]
    cells = found["of"][1][1]
    assert len(cells) == CELLS
    assert set(cells) <= {"0", "1", "2"}
    for start in (at for at in lost if at + 9000 < length):
        assert cells[start * CELLS // length] == "1"
    assert strips(data, [{"key": 1}], None) == {}
    assert _cells([(1, 0, 100), (2, 50, 51)], 200).tolist() == [1] * 50 + [2] + [1] * 49 + [0] * 100


def test_recordings_must_be_recordings(data: Artifact, tmp_path: Path) -> None:
    model = artifact(tmp_path, "model", "train", [fill_model("teacher")])
    with pytest.raises(ConfigError, match="no recordings"):
        explore(data, model, Choice(), silent)


# -- page ------------------------------------------------------------------------------------------------------------


class Blocks(HTMLParser):
    """Scripts by their type, and every name of an element."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.types: list[str | None] = []
        self.rows: dict[str, Any] = {}
        self._rows = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag == "script":
            self.types.append(dict(attrs).get("type"))
            self._rows = dict(attrs).get("id") == "rows"

    def handle_data(self, data: str) -> None:
        if self._rows and data.strip():
            self.rows, self._rows = json.loads(data), False


def test_hostile_text_stays_text_and_long_text_is_cut(html: str) -> None:
    page = Blocks()
    page.feed(html)
    assert page.types.count(None) == page.types.count("application/json") == 1
    assert set(page.types) == {None, "application/json", "text/plain"}
    assert "img" not in page.names
    assert any(HOSTILE in text for text in page.rows["texts"]["text"])
    assert len(LONG) > 100_000
    assert len(html) < 2_000_000
    assert html.count("endless ") < 2000
    assert "http" not in re.sub(r"http-equiv", "", html)


def test_equal_artifacts_give_equal_pages(data: Artifact, tmp_path: Path) -> None:
    choice = Choice(title="a", clips=3, rows=30)
    first = explore(data, None, choice, silent)
    assert first == explore(make_set(tmp_path), None, choice, silent)
    assert first != explore(data, None, Choice(title="a", clips=3, rows=30, seed=1), silent)


def test_rows_of_older_artifacts_show_what_there_is(tmp_path: Path) -> None:
    made = artifact(tmp_path, "old", "cut", [fill_utterances(0, 6)])
    page = explore(made, None, Choice(clips=2), silent)
    rows = Blocks()
    rows.feed(page)
    assert set(rows.rows["numbers"]) == {"seconds", "confidence", "words_per_s"}
    assert "By speaker" in page
    assert "By tier" not in page
    assert "Character error rate" not in page


def test_other_artifacts_have_a_short_page(data: Artifact, tmp_path: Path) -> None:
    recordings = explore(Artifact(data.url.replace("utterances", "recordings")), None, Choice(), silent)
    assert "By language" in recordings
    assert "truncated-audio" in recordings
    assert 'id="explore"' not in recordings
    model = explore(artifact(tmp_path, "model", "train", [fill_model("teacher")]), None, Choice(), silent)
    assert "Made by the stage train" in model
    assert 'id="hours"' not in model


def test_the_command_takes_an_artifact_and_stays_a_stage(data: Artifact, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", data.url, "--out", str(out), "--clips", "1", "--rows", "5"])
    assert done.exit_code == 0, done.output
    assert out.read_text("utf-8").count('type="text/plain"') >= 1
    assert "--score-alignment" in CliRunner().invoke(app, ["report", "--help"]).output
    assert "--longest-s" in CliRunner().invoke(app, ["report", data.url, "--help"]).output


# -- browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """2,000 utterances in headless Chromium."""
    root = tmp_path_factory.mktemp("page")
    path = root / "page.html"
    made = make_set(root, shards=4, n=500)
    path.write_text(explore(made, None, Choice(clips=60), silent), "utf-8")
    with opened(path, 1240) as tab:
        yield tab


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    """Every browser test starts without filters."""
    if "page" in request.fixturenames:
        request.getfixturevalue("page").locator("#reset").click()


def values(page: Any, column: str) -> list[str]:
    """A column of the shown rows."""
    heads = page.eval_on_selector_all("#utterances thead th[data-column]", "all => all.map(e => e.dataset.column)")
    place = heads.index(column) + 2
    found: list[str] = page.eval_on_selector_all(
        "#utterances tr[data-row]", f"all => all.map(e => e.cells[{place}].textContent)"
    )
    return found


def test_it_is_painted_and_ready_soon(page: Any) -> None:
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 3000  # 0.3 s on a quiet machine
    assert page.locator("#found").inner_text().startswith("2,000 of 2,000 utterances")
    assert page.locator("#utterances tr[data-row]").count() == 50


def test_two_thousand_rows_sort_and_filter_at_once(page: Any) -> None:
    """Nine times from the event to the laid-out table: about 30 ms each."""
    spent_s = cpu_s(
        page,
        """() => {
        const laid_out = (call) => {
          call();
          document.body.offsetHeight;
        };
        const head = (name) => document.querySelector(`#utterances th[data-column="${name}"] button`);
        const tier = document.querySelector('select[data-column="tier"]');
        const pick = (value) => { tier.value = value; tier.dispatchEvent(new Event("change")); };
        const steps = (name) => [() => head(name).click(), () => pick("0"), () => pick("")];
        ["text", "cer", "speaker"].flatMap(steps).forEach(laid_out);
        }""",
    )
    assert spent_s / 9 < 0.25


def test_heads_sort_and_unknown_numbers_come_last(page: Any) -> None:
    head = page.locator('#utterances th[data-column="snr_db"]')
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert set(values(page, "snr_db")) == {"0.0"}
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert set(values(page, "snr_db")) == {"39.0"}
    page.locator('#utterances th[data-column="cer"] button').click()
    assert set(values(page, "cer")) == {"0.0"}
    page.locator('select[data-column="speaker"]').select_option(label="speaker 0")
    page.get_by_role("button", name="Next").click()
    assert page.get_by_role("button", name="Next").is_disabled()
    assert values(page, "cer")[-1] == "–"


def test_filters_narrow_the_table_together(page: Any) -> None:
    page.locator('select[data-column="language"]').select_option(label="en")
    page.locator('input[data-column="cer"][data-side="high"]').fill("5")
    page.locator("#search").fill("HARBOUR them")
    fits = [k for k in range(4, 2000) if k % 2 == 0 and k % 11 and k % 37 <= 5]  # key 2 says something else
    expected = [k for k in fits if {"harbour", "them"} <= set(spoken(k % 8)[0])]
    assert 0 < len(expected) < 100
    until(page, f"document.querySelector('#found').textContent.startsWith('{len(expected)} of 2,000')")
    assert set(values(page, "language")) == {"en"}
    assert all(float(cer) <= 5 for cer in values(page, "cer"))
    page.locator("#search").fill("a phrase that is in no utterance")
    until(page, "document.querySelector('#utterances tbody').textContent.includes('No utterance is like that')")


def test_a_row_plays_and_its_words_light_up_in_turn(page: Any) -> None:
    page.locator("#sound").check()
    page.locator("#utterances tr[data-row] .open").first.click()
    detail = page.locator("tr.detail")
    spoken = detail.locator(".track .at").all_inner_texts()
    strip = detail.locator(".strip")
    assert strip.get_attribute("aria-label").startswith("The whole recording, ")
    assert strip.locator(".out").count() >= 1
    box, here = strip.bounding_box(), strip.locator(".here").bounding_box()
    assert box["x"] - 1 <= here["x"] < here["x"] + here["width"] <= box["x"] + box["width"] + 1
    watch_words(page, ".track .at")
    detail.locator(".play").click()
    until(page, "lit.length >= 3")
    lit = page.evaluate("lit")
    assert [each["word"] for each in lit] == sorted({each["word"] for each in lit}), spoken
    assert all(each["readings"][:2] == ["as written", "normalised"] for each in lit), "in all readings"
    heard = page.evaluate("times")
    detail.locator(".track .at").first.click()  # back to the first word
    until(page, f"times.slice({len(heard)}).some(each => each < {max(heard)})")
    # In one step, as the clip is short; the event that turns the button comes a moment later.
    pause = "const b = document.querySelector('tr.detail .play'); if (b.matches('.on')) b.click();"
    page.evaluate(f"() => {{ {pause} }}")
    until(page, "document.querySelector('tr.detail .play').getAttribute('aria-label') === 'Play'")
    page.locator("#utterances tr.chosen .open").click()
    assert page.locator("tr.detail").count() == 0


NOTHING = "document.querySelector('#utterances tbody').textContent.includes('No utterance is like that')"


def search(page: Any, words: str) -> None:
    """Returns when the table shows what was found."""
    page.locator("#search").fill("a phrase that is in no utterance")
    until(page, NOTHING)
    page.locator("#search").fill(words)
    until(page, f"!{NOTHING}")


def test_three_readings_are_side_by_side_with_their_differences(page: Any) -> None:
    search(page, "seven")
    page.locator("#utterances tr[data-row] .open").first.click()
    assert page.eval_on_selector_all("[data-reading]", "all => all.map(e => e.dataset.reading)") == [
        "as written",
        "normalised",
        "second reading",
    ]
    assert page.locator('[data-reading="as written"] .changed', has_text="7").count() >= 1
    first = page.locator('[data-reading="normalised"] span').first.inner_text()
    assert page.locator('[data-reading="second reading"] .del').first.inner_text() == first
    assert page.locator('[data-reading="second reading"] .ins').inner_text() == "indeed"
    page.locator("#utterances tr.chosen .open").click()


def test_keys_move_open_and_play(page: Any) -> None:
    page.locator("#sound").check()
    page.locator("#utterances tr[data-row] .open").first.focus()
    page.keyboard.press("ArrowDown")
    focused = "document.activeElement.closest('tr').rowIndex"
    assert page.evaluate(focused) == 2
    page.keyboard.press("Enter")
    assert page.locator("tr.chosen .open").get_attribute("aria-expanded") == "true"
    page.keyboard.press("p")
    until(page, "document.querySelector('tr.chosen .play').matches('.on')")
    page.keyboard.press("p")
    until(page, "!document.querySelector('tr.chosen .play').matches('.on')")
    page.keyboard.press("Enter")


def test_hostile_words_are_shown_as_words(page: Any) -> None:
    for words in ("alert(1)", "gnp.exe", "endless"):
        search(page, words)
        page.locator("#utterances tr[data-row] .open").first.click()
        assert words in page.locator('[data-reading="normalised"]').inner_text()
        page.locator("#utterances tr.chosen .open").click()
    assert page.locator("main img").count() == 0


def test_what_was_left_out_can_be_heard(page: Any) -> None:
    page.locator("#losses summary", has_text="low-snr").click()
    button = page.locator("#losses details[open] button.play").first
    button.click()
    until(page, "document.querySelector('#losses button.play.on') !== null")
    until(page, "document.querySelector('#losses button.play.on') === null")


def open_first(page: Any) -> None:
    page.locator("#sound").check()
    page.locator("#utterances tr[data-row] .open").first.click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark(page: Any, scheme: str) -> None:
    open_first(page)
    page.evaluate("document.querySelector('.track .at').classList.add('lit')")
    looks(page, scheme)
    page.locator("#utterances tr.chosen .open").click()


def test_it_fits_a_phone(page: Any) -> None:
    open_first(page)
    fits_a_phone(page)
    page.set_viewport_size({"width": 1240, "height": 900})
    page.locator("#utterances tr.chosen .open").click()


def test_a_row_is_played_by_keyboard_alone(page: Any) -> None:
    focus = "document.activeElement"
    time_s = "Number(document.querySelector('.track canvas').getAttribute('aria-valuenow'))"
    page.locator("#sound").check()
    page.locator("#utterances tr[data-row] .open").first.focus()
    page.keyboard.press("Enter")
    assert measured(page, "unreachable") == []
    for _ in range(2):  # the button that plays, then the wave
        page.keyboard.press("Tab")
    assert page.evaluate(f"{focus}.getAttribute('role')") == "slider"
    page.keyboard.press("ArrowRight")
    until(page, f"{time_s} === 0.5")
    page.keyboard.press("ArrowLeft")
    until(page, f"{time_s} === 0")
    page.keyboard.press("Enter")
    until(page, f"{time_s} > 0.1")
    page.keyboard.press("Space")
    until(page, "document.querySelector('tr.detail .play').getAttribute('aria-label') === 'Play'")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focus}.matches('.track .at:first-of-type')")
    assert page.evaluate(f"getComputedStyle({focus}).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    watch_words(page, ".track .at")
    page.keyboard.press("Enter")  # from the second word
    until(page, "lit.some(each => each.word === 1)")
    for reading in ("as written", "normalised"):
        page.keyboard.press("Tab")
        assert page.evaluate(f"{focus}.closest('[data-reading]').dataset.reading") == reading
        page.keyboard.press("End")
        assert page.evaluate(f"{focus} === [...{focus}.parentElement.querySelectorAll('.word')].at(-1)")
    page.locator("#utterances tr.chosen .open").click()
