"use strict";

// Tables: a click on a head sorts by that column, a second click turns the order. Rows marked "total" stay at the end.
function valueOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value !== undefined ? Number(cell.dataset.value) : cell.textContent.trim().toLowerCase();
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") {
    return (Number.isNaN(a) ? Infinity : a) - (Number.isNaN(b) ? Infinity : b);
  }
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].filter((row) => !row.classList.contains("total"));
    const totals = [...body.rows].filter((row) => row.classList.contains("total"));
    rows.sort((a, b) => (down ? -1 : 1) * compare(valueOf(a, column), valueOf(b, column)));
    body.append(...rows, ...totals);
  }));
}

// One stop of the Tab key for a group of buttons: the arrows, Home and End go on within it.
function roving(group, selector) {
  const items = [...group.querySelectorAll(selector)];
  items.forEach((item, i) => { item.tabIndex = i ? -1 : 0; });
  const enter = (item) => { for (const other of items) other.tabIndex = other === item ? 0 : -1; };
  group.addEventListener("focusin", (event) => { if (items.includes(event.target)) enter(event.target); });
  group.addEventListener("keydown", (event) => {
    const at = items.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (at < 0 || to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    items[Math.max(0, Math.min(items.length - 1, to))].focus();
  });
}

// A place in a sound, in seconds: arrows move by half a second, Page keys by two, Enter and Space play and pause.
function slider(element, length, now, go, toggle) {
  const steps = { ArrowRight: 0.5, ArrowUp: 0.5, ArrowLeft: -0.5, ArrowDown: -0.5, PageUp: 2, PageDown: -2, Home: -Infinity, End: Infinity };
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) go(Math.max(0, Math.min(length, now() + steps[event.key])));
    else if (event.key === "Enter" || event.key === " ") toggle();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

// Utterances: one plays at a time; its words light up, and a click on a word or on the wave goes there.
let current = null;
const players = [...document.querySelectorAll(".utterance")].map((card, number) => {
  const audio = card.querySelector("audio");
  const button = card.querySelector(".play");
  const wave = card.querySelector(".wave");
  const words = [...card.querySelectorAll(".word")];
  const seconds = Number(card.dataset.seconds);

  const draw = () => {
    const now = audio.currentTime;
    wave.style.setProperty("--done", `${Math.min(100, (100 * now) / seconds)}%`);
    wave.setAttribute("aria-valuenow", now.toFixed(1));
    wave.setAttribute("aria-valuetext", `${now.toFixed(1)} of ${seconds.toFixed(1)} seconds`);
    for (const word of words) {
      const lit = !audio.paused && now >= Number(word.dataset.start) && now < Number(word.dataset.end);
      word.classList.toggle("lit", lit);
    }
    if (!audio.paused) requestAnimationFrame(draw);
  };

  const show = () => {
    card.classList.toggle("playing", !audio.paused);
    for (const each of [button, ...document.querySelectorAll(`[data-example="${number}"]`)]) {
      each.classList.toggle("on", !audio.paused);
      each.setAttribute("aria-label", audio.paused ? "Play" : "Pause");
    }
    draw();
  };

  const playFrom = (time) => {
    if (current && current !== audio) current.pause();
    current = audio;
    audio.currentTime = time;
    audio.play().catch((error) => { if (error.name !== "AbortError") throw error; });
  };
  const toggle = () => (audio.paused ? playFrom(audio.ended ? 0 : audio.currentTime) : audio.pause());

  audio.addEventListener("play", show);
  audio.addEventListener("pause", show);
  audio.addEventListener("seeked", draw);
  audio.addEventListener("ended", () => { audio.currentTime = 0; show(); });
  button.addEventListener("click", toggle);
  wave.addEventListener("click", (event) => {
    const box = wave.getBoundingClientRect();
    playFrom((seconds * (event.clientX - box.left)) / box.width);
  });
  slider(wave, seconds, () => audio.currentTime, (time) => { audio.currentTime = time; }, toggle);
  for (const word of words) word.addEventListener("click", () => playFrom(Number(word.dataset.start)));
  if (words.length) roving(words[0].parentElement, ".word");
  return { toggle, show };
});
