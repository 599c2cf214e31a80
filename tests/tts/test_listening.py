"""A listening test in a real browser, and the opinions that come of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from chromium import PATIENCE_S, fits_a_phone, looks, opened, until
from click.testing import CliRunner
from made_audio import audio_artifact, selection_artifact
from made_voices import ran

from megahour.cli.main import app
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.tts.listening import opinions
from megahour.tts.listening_stage import MakeListeningTest
from megahour.tts.params import ListeningTestParams

TEXTS = ["one", "two", "three"]
ANSWERED = "document.getElementById('progress').value"


def system(folder: Path, loudness: int) -> Artifact:
    """Says the texts; 0.1 s each."""
    clips = [(loudness * np.sin(np.arange(800) * (k + 1) / 5)).astype(np.int16) for k in range(len(TEXTS))]
    audio = audio_artifact(folder / "audio", [clips], 8_000)
    spoken = selection_artifact(folder / "spoken", audio, TEXTS, 1)
    path = Path(spoken.path("shards/00000.tar"))
    path.write_bytes(Path(audio.path("shards/00000.tar")).read_bytes())
    return spoken


def page_of(folder: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    systems = {"reference": system(folder / "a", 8000), "first": system(folder / "b", 3000)}
    made = ran(MakeListeningTest(), ListeningTestParams(kind=kind, utterances=2), systems, folder / "test")
    page = folder / "page.html"
    page.write_bytes(made.read_bytes(0, ".html"))
    return page, made.read_json(0, ".key.json")


def saved(tab: Any) -> dict[str, Any]:
    return json.loads(unquote(tab.get_attribute("#save", "href").partition(",")[2]))


def until_another_tab_has(tab: Any, answers: int) -> None:
    """Another process of Chromium stores the answers: on a busy machine long after the page has passed them on."""
    other = tab.context.new_page()
    other.goto(tab.url)
    end = time.monotonic() + PATIENCE_S
    while other.evaluate(ANSWERED) != answers:
        assert time.monotonic() < end, "what was answered is stored"
        other.wait_for_timeout(100)
        other.reload()
    other.close()


def test_mos_with_the_keyboard_alone(tmp_path: Path) -> None:
    page, key = page_of(tmp_path, "mos")
    assert b"reference" not in page.read_bytes().split(b'id="data"')[1].split(b"</script>")[0], "the page is blind"
    with opened(page, 800) as tab:
        looks(tab, "light")
        fits_a_phone(tab)
        assert tab.is_disabled("#next")
        while (number := tab.evaluate(ANSWERED)) < 4:
            tab.keyboard.press("4")
            assert tab.is_disabled("#next"), "nobody goes on without having listened"
            tab.keyboard.press("Space")
            until(tab, "!document.getElementById('next').disabled")
            tab.keyboard.press("Enter")
            if number == 2:
                until_another_tab_has(tab, 3)
                tab.reload()
                tab.requests.pop()
                assert tab.evaluate(ANSWERED) == 3, "what was answered is kept"
        answer = saved(tab)
    found = {each.system: each for each in opinions(key, [answer, answer])}
    assert {name: (each.mean, each.ratings) for name, each in found.items()} == {
        "reference": (4.0, 4),
        "first": (4.0, 4),
    }


def test_enter_presses_the_button_that_has_the_focus(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path, "mos")
    with opened(page, 800) as tab:
        for focused, at in (("#next", 1), ("#back", 0)):
            tab.keyboard.press("4")
            tab.keyboard.press("Space")
            until(tab, "!document.getElementById('next').disabled")
            tab.focus(focused)
            tab.keyboard.press("Enter")
            assert tab.evaluate(ANSWERED) == at


def test_comparison_and_mushra(tmp_path: Path) -> None:
    page, key = page_of(tmp_path / "cmos", "cmos")
    with opened(page, 800) as tab:
        for _ in range(2):
            tab.keyboard.press("a")
            tab.keyboard.press("b")
            tab.keyboard.press("6")  # B is better
            until(tab, "!document.getElementById('next').disabled")
            tab.keyboard.press("Enter")
        answer = saved(tab)
    for ratings in answer["ratings"].values():
        assert sorted(ratings.values()) == [-1.0, 1.0]
    page, key = page_of(tmp_path / "mushra", "mushra")
    with opened(page, 800) as tab:
        for _ in range(2):
            for name in ("1", "2", "r"):
                tab.keyboard.press(name)
            for slider in tab.query_selector_all("input"):
                slider.fill("70")
            until(tab, "!document.getElementById('next').disabled")
            tab.keyboard.press("Enter")
        found = opinions(key, [saved(tab)])
    assert [(each.system, each.mean, each.ratings) for each in found] == [("reference", 70.0, 2), ("first", 70.0, 2)]


def test_samples_side_by_side(tmp_path: Path) -> None:
    systems = {"first": system(tmp_path / "b", 3000), "reference": system(tmp_path / "a", 8000)}
    p = ListeningTestParams(kind="samples", utterances=2, names=["a <speaker>", "our voice"], title="A & B")
    made = ran(MakeListeningTest(), p, systems, tmp_path / "test")
    assert set(made.receipts()[0].files) == {".html"}, "there is nothing to hide"
    page = tmp_path / "page.html"
    page.write_bytes(made.read_bytes(0, ".html"))
    with opened(page, 800) as tab:
        looks(tab, "light")
        fits_a_phone(tab)
        assert [each.inner_text() for each in tab.query_selector_all("thead th")] == [
            "text",
            "a <speaker>",
            "our voice",
        ]
        assert len(tab.query_selector_all("audio")) == 4
        length = "document.querySelectorAll('audio')[1]"
        tab.evaluate(f"{length}.load()")
        until(tab, f"{length}.duration > 0.09")
    with pytest.raises(ConfigError, match="1 different names for 2 systems"):
        MakeListeningTest().check(ListeningTestParams(kind="samples", names=["x"]), ["first", "reference"])


KEY = {"test": "t", "kind": "mos", "systems": ["x", "y"], "clips": {"1": "x", "2": "y", "3": "x"}}


def answer(**ratings: Any) -> dict[str, Any]:
    return {"test": "t", "ratings": {"trial": {name[1:]: value for name, value in ratings.items()}}}


def test_intervals_are_those_of_listeners() -> None:
    alike = opinions(KEY, [answer(_1=3, _3=3)] * 4)[0]
    assert (alike.mean, alike.low, alike.high, alike.ratings) == (3.0, 3.0, 3.0, 8)
    apart = opinions(KEY, [answer(_1=1, _3=1), answer(_1=5, _3=5)])[0]
    assert (apart.mean, apart.low, apart.high) == (3.0, 1.0, 5.0)


@pytest.mark.parametrize(
    "wrong",
    [
        [{"test": "u", "ratings": {}}],
        [{"test": "t"}],
        [answer(_9=1)],
        [answer(_1=99)],
        [answer(_1=float("nan"))],
        [answer(_1=True)],
        [answer(_1="5")],
        [{"test": "t", "ratings": [1]}],
        [{"test": "t", "ratings": {"trial": 1}}],
    ],
)
def test_answers_to_something_else(wrong: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError) as refused:
        opinions(KEY, wrong)
    assert refused.value.remedy


def test_the_command_and_a_file_that_is_no_answer(tmp_path: Path) -> None:
    _, key = page_of(tmp_path, "cmos")
    clip = next(iter(key["clips"]))
    (tmp_path / "a.json").write_text(json.dumps({"test": key["test"], "ratings": {"t": {clip: 1}}}))
    done = CliRunner().invoke(app, ["listening-results", str(tmp_path / "test"), str(tmp_path / "a.json")])
    assert "1.00" in done.output
    for wrong in (b"[]", b"\xff\x00{}", b"[" * 100_000):
        (tmp_path / "b.json").write_bytes(wrong)
        done = CliRunner().invoke(app, ["listening-results", str(tmp_path / "test"), str(tmp_path / "b.json")])
        assert "not a file of answers" in str(done.exception) + done.output


def test_a_listener_who_saves_twice_counts_once(tmp_path: Path) -> None:
    _, key = page_of(tmp_path, "mos")
    one, other = list(key["clips"])[:2]
    saves = [{"1": {one: 2}}, {"1": {one: 2}, "2": {other: 4}}]
    for number, ratings in enumerate([*saves, saves[1]]):
        listener = 7 if number < 2 else 8
        text = json.dumps({"test": key["test"], "listener": listener, "ratings": ratings})
        (tmp_path / f"{number}.json").write_text(text)
    paths = [str(tmp_path / f"{number}.json") for number in range(3)]
    done = CliRunner().invoke(app, ["listening-results", str(tmp_path / "test"), *paths])
    assert "mos of 2 listeners" in done.output
    assert sum(int(line.split()[-2]) for line in done.output.splitlines() if line.endswith(" ratings")) == 4


@pytest.mark.parametrize(("kind", "roles"), [("cmos", {"first"}), ("mushra", {"first", "second"})])
def test_too_few_systems(kind: str, roles: set[str]) -> None:
    with pytest.raises(ConfigError):
        MakeListeningTest().check(ListeningTestParams(kind=kind), roles)
