
// ---- Hypotheses: below each word of the reference what every system heard, an utterance in two rows of the table.
(() => {
  const data = JSON.parse(document.getElementById("rows").textContent);
  const systems = Object.keys(data.steps);
  const name = namesIn(data);
  const numbers = data.numbers;
  const split = (words) => words.split(" ").filter(Boolean);
  const LABELS = { words: "words", change: "more errors", ...Object.fromEntries(systems.map((s) => [`wer_${s}`, `WER ${s} %`])) };
  const columns = ["words", ...systems.map((s) => `wer_${s}`), "change"].filter((c) => numbers[c]);

  // What a system read: [kind, place in the reference, word] of each step.
  const read = (system, row, reference) => {
    const wrong = split(data.texts[system][row]);
    let at = 0;
    let next = 0;
    return Array.from(data.steps[system][row], (step) => {
      if (step === "i") return ["ins", at, wrong[next++]];
      if (step === "s") return ["sub", at++, wrong[next++]];
      return [step === "d" ? "del" : "ok", at, reference[at++]];
    });
  };
  const texts = data.texts.reference.map((words, row) => systems.map((system) =>
    read(system, row, split(words)).filter(([kind]) => kind !== "del").map(([, , word]) => word).join(" ")));

  // The slots of an utterance: [reference word or "", ...[kind, word] of each system]; first those before each word.
  const slots = (row) => {
    const reference = split(data.texts.reference[row]);
    const columns = systems.map((system) => {
      const before = Array.from({ length: reference.length + 1 }, () => []);
      const on = reference.map(() => ["", "…"]); // of words beyond those that the page holds
      for (const [kind, at, word] of read(system, row, reference)) { if (kind === "ins") before[at].push([kind, word]); else on[at] = [kind, word]; }
      return { before, on };
    });
    return [...reference, null].flatMap((word, i) => {
      const most = Math.max(0, ...columns.map(({ before }) => before[i].length));
      const extra = Array.from({ length: most }, (_, k) => ["", ...columns.map(({ before }) => before[i][k] || ["", ""])]);
      return word === null ? extra : [...extra, [word, ...columns.map(({ on }) => on[i])]];
    });
  };
  const TIPS = { sub: "instead of", del: "not heard", ins: "extra" };

  const line = (row) => {
    const cells = [make("td", {}, data.sound[row] < 0 ? "" : make("button", { type: "button", class: "play small", "data-example": data.sound[row], "aria-label": "Play", onclick: () => players[data.sound[row]].toggle() }))];
    for (const column of ["speaker", "condition"]) cells.push(make("td", { class: "name", title: name(column, row) }, name(column, row) || "–"));
    for (const column of columns) {
      const value = numbers[column][row];
      cells.push(make("td", column === "change" && value ? { class: value < 0 ? "win" : "loss" } : {}, column === "change" && value > 0 ? `+${value}` : shown(column, value)));
    }
    const word = ([kind, shownText], reference) => make("span", kind && kind !== "ok" ? { class: kind, title: kind === "sub" ? `${TIPS.sub} “${reference}”` : TIPS[kind] } : {}, shownText || "\u00a0");
    const slot = ([reference, ...words]) => make("span", { class: "slot" }, make("b", {}, reference || "\u00a0"), ...words.map((each) => word(each, reference)));
    const who = make("span", { class: "slot who" }, make("b", {}, "reference"), ...systems.map((system) => make("span", {}, system)));
    const aligned = make("div", { class: "aligned", "aria-hidden": "true" }, who, ...slots(row).map(slot));
    const aloud = systems.map((system, k) => `${system}, ${data.errors[system][row]} wrong: ${texts[row][k] || "nothing"}.`);
    const read = make("p", { class: "unseen" }, [`Reference: ${data.texts.reference[row]}.`, ...aloud].join(" "));
    const all = make("td", { colspan: columns.length + 3 }, make("div", { class: "held" }, aligned, read));
    return [make("tr", { "data-row": row, class: "about" }, ...cells), make("tr", { class: "reading" }, all)];
  };

  const { refresh, shown } = paged(data, {
    table: "readings", hint: "words, speaker or key", labels: LABELS, percent: new Set(systems.map((s) => `wer_${s}`)), digits: { words: 0, change: 0 }, text: data.texts.reference, lead: 1,
    hay: (row) => [data.texts.reference[row], ...texts[row], name("speaker", row), data.key[row]],
    picks: ["speaker", "condition"],
    ranges: columns,
    ticks: [
      ...(systems.length > 1 ? [["differ", "read differently", (row) => new Set(texts[row]).size > 1]] : []),
      ...(data.sound.some((number) => number >= 0) ? [["sound", "with sound", (row) => data.sound[row] >= 0]] : []),
    ],
    heads: [["speaker", "speaker"], ["condition", "condition"], ...columns.map((c) => [c, LABELS[c]])],
    sums: (rows) => {
      const words = rows.reduce((sum, row) => sum + numbers.words[row], 0);
      return words ? systems.map((s) => `WER ${s} ${((100 * rows.reduce((sum, row) => sum + data.errors[s][row], 0)) / words).toFixed(1)} %`) : [];
    },
    line,
    before: () => {},
    after: () => players.forEach((player) => player.show()),
  });
  refresh();
})();
