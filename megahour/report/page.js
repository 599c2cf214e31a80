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

// Utterances: one plays at a time; its words light up, and a click on a word or on the wave goes there.
let current = null;

for (const card of document.querySelectorAll(".utterance")) {
  const audio = card.querySelector("audio");
  const button = card.querySelector(".play");
  const wave = card.querySelector(".wave");
  const words = [...card.querySelectorAll(".word")];
  const seconds = Number(card.dataset.seconds);

  const draw = () => {
    const now = audio.currentTime;
    wave.style.setProperty("--done", `${Math.min(100, (100 * now) / seconds)}%`);
    for (const word of words) {
      const lit = !audio.paused && now >= Number(word.dataset.start) && now < Number(word.dataset.end);
      word.classList.toggle("lit", lit);
    }
    if (!audio.paused) requestAnimationFrame(draw);
  };

  const show = () => {
    card.classList.toggle("playing", !audio.paused);
    button.setAttribute("aria-label", audio.paused ? "Play" : "Pause");
    draw();
  };

  const playFrom = (time) => {
    if (current && current !== audio) current.pause();
    current = audio;
    audio.currentTime = time;
    audio.play();
  };

  audio.addEventListener("play", show);
  audio.addEventListener("pause", show);
  audio.addEventListener("ended", () => { audio.currentTime = 0; show(); });
  button.addEventListener("click", () => (audio.paused ? playFrom(audio.currentTime) : audio.pause()));
  wave.addEventListener("click", (event) => {
    const box = wave.getBoundingClientRect();
    playFrom((seconds * (event.clientX - box.left)) / box.width);
  });
  for (const word of words) {
    word.addEventListener("click", () => playFrom(Number(word.dataset.start)));
  }
}
