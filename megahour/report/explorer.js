
// ---- Explorer: a table of a sample of the data set. Rows are numbers into columns; only a page of them is in the DOM.
(() => {
  const block = document.getElementById("rows");
  const audio = new Audio();
  let now = null; // {id, button, row}: what the one audio element holds

  // ---- sound: decoded when it is asked for, one clip at a time
  const clip = (id) => document.getElementById(`clip-${id}`);
  const show = () => {
    for (const button of document.querySelectorAll("[data-clip]")) {
      const on = now !== null && button.dataset.clip === now.id && !audio.paused;
      button.classList.toggle("on", on);
      button.setAttribute("aria-label", on ? "Pause" : "Play");
    }
    follow();
  };
  const load = (id) => {
    if (now && now.id === id) return;
    const source = clip(id);
    now = { id };
    audio.src = `data:${source.dataset.media};base64,${source.textContent}`;
  };
  const playFrom = (id, seconds) => {
    load(id);
    audio.currentTime = seconds;
    audio.play().catch((error) => { if (error.name !== "AbortError") throw error; });
  };
  const toggle = (id) => {
    if (now && now.id === id && !audio.paused) audio.pause();
    else playFrom(id, now && now.id === id && !audio.ended ? audio.currentTime : 0);
  };
  for (const name of ["play", "pause", "ended"]) audio.addEventListener(name, show);
  audio.addEventListener("seeked", () => follow());
  const player = (id) => make("button", { type: "button", class: "play small", "aria-label": "Play", "data-clip": id });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-clip]");
    if (button) toggle(button.dataset.clip);
  });
  let follow = () => {};
  if (!block) return;

  // ---- columns
  const data = JSON.parse(block.textContent);
  const count = data.key.length;
  const name = namesIn(data);
  const numbers = data.numbers;
  const text = data.texts.text || data.texts.raw || data.key;
  const LABELS = { seconds: "seconds", cer: "CER %", edge_cer: "edge CER %", confidence: "conf.", snr_db: "SNR dB", words_per_s: "words/s", loss: "loss", wildcard_share: "untranscribed", clipped_share: "clipped" };
  const PERCENT = new Set(["cer", "edge_cer"]);
  const fits = (columns, from) => columns.filter((column) => from[column]);
  const varied = (column) => data.names[column] && data.names[column].of.length > 1;
  const nameColumns = ["speaker", "language", "licence", "tier", "split", "set"].filter((c) => c === "speaker" || c === "tier" ? data.names[c] : varied(c));
  const numberColumns = fits(["seconds", "cer", "confidence", "snr_db"], numbers); // the others are told in an opened row

  const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  const bars = (canvas, wave, done = 0) => {
    const box = canvas.getBoundingClientRect();
    const scale = Math.min(2, devicePixelRatio || 1);
    canvas.width = Math.max(1, Math.round(box.width * scale));
    canvas.height = Math.max(1, Math.round(box.height * scale));
    const context = canvas.getContext("2d");
    const peaks = atob(wave);
    const many = Math.min(peaks.length, Math.max(1, Math.floor(canvas.width / 3)));
    const wide = canvas.width / many;
    for (let i = 0; i < many; i += 1) {
      let peak = 0;
      for (let k = Math.floor((i * peaks.length) / many); k < Math.floor(((i + 1) * peaks.length) / many); k += 1) peak = Math.max(peak, peaks.charCodeAt(k));
      const high = Math.max(1, (peak / 255) * (canvas.height - 2));
      context.fillStyle = (i + 0.5) / many <= done ? bars.done : bars.todo;
      context.fillRect(i * wide, (canvas.height - high) / 2, Math.max(1, wide - scale * 0.7), high);
    }
    if (done > 0) { context.fillStyle = bars.ink; context.fillRect(done * canvas.width - scale / 2, 0, scale * 1.5, canvas.height); }
  };
  const paint = () => { bars.done = colour("--student"); bars.todo = colour("--baseline"); bars.ink = colour("--ink"); };
  paint();

  const line = (row) => {
    const id = `u${row}`;
    const opened = open === row;
    const cells = [make("td", {}, data.waves[row] ? player(id) : ""), make("td", {}, data.waves[row] ? make("canvas", { class: "thumb", "aria-hidden": "true" }) : "")];
    const button = make("button", { type: "button", class: "open", "aria-expanded": opened, onclick: () => choose(row) }, text[row] || "(no text)");
    cells.push(make("td", { class: "words" }, button));
    for (const column of nameColumns) {
      const value = name(column, row);
      const inner = column === "tier" && value ? make("span", { class: `tier ${["clean", "dirty"].includes(value) ? value : ""}` }, value) : value || "–";
      cells.push(make("td", { class: "name", title: value }, inner));
    }
    for (const column of numberColumns) cells.push(make("td", {}, shown(column, numbers[column][row])));
    return make("tr", { "data-row": row, class: opened ? "chosen" : "" }, ...cells);
  };

  let open = null;
  const { body, draw, refresh, shown } = paged(data, {
    table: "utterances", hint: "words, speaker, recording or key", labels: LABELS, percent: PERCENT, digits: { confidence: 2 }, text, lead: 2,
    hay: (row) => [...Object.values(data.texts).map((texts) => texts[row]), ...["speaker", "name", "attribution"].filter((c) => data.names[c]).map((c) => name(c, row)), data.key[row]],
    picks: ["speaker", "language", "licence", "source", "tier", "split", "set", "condition"],
    ranges: ["seconds", "cer", "edge_cer", "confidence", "snr_db", "words_per_s"],
    ticks: data.waves.some(Boolean) ? [["sound", "with sound", (row) => data.waves[row] !== ""]] : [],
    heads: [["text", "text"], ...nameColumns.map((c) => [c, c]), ...numberColumns.map((c) => [c, LABELS[c]])],
    sums: (rows) => [`${(rows.reduce((sum, row) => sum + numbers.seconds[row], 0) / 3600).toFixed(2)} h`],
    line: (row) => [line(row)],
    before: (rows) => { if (!rows.includes(open)) close(); },
    after: () => {
      if (open !== null) body.querySelector(`[data-row="${open}"]`).after(detail.row);
      for (const canvas of body.querySelectorAll("canvas.thumb")) bars(canvas, data.waves[canvas.closest("tr").dataset.row]);
      show();
    },
  });

  // ---- one row opened: wave, words in time, and three readings side by side
  let detail = null;
  const close = () => {
    if (open === null) return;
    if (now && now.id === `u${open}`) audio.pause();
    open = null;
    detail = null;
    follow = () => {};
  };
  const choose = (row) => {
    const same = open === row;
    close();
    if (!same) { open = row; detail = build(row); }
    draw();
    if (detail) detail.draw();
    body.querySelector(`[data-row="${row}"] .open`).focus({ preventScroll: true });
  };

  const difference = (a, b) => {
    const cost = Array.from({ length: a.length + 1 }, (_, i) => { const line = new Uint16Array(b.length + 1); line[0] = i; return line; });
    for (let j = 0; j <= b.length; j += 1) cost[0][j] = j;
    for (let i = 1; i <= a.length; i += 1) for (let j = 1; j <= b.length; j += 1) {
      cost[i][j] = Math.min(cost[i - 1][j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1), cost[i - 1][j] + 1, cost[i][j - 1] + 1);
    }
    const steps = [];
    for (let i = a.length, j = b.length; i || j;) {
      if (i && j && cost[i][j] === cost[i - 1][j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)) { i -= 1; j -= 1; steps.push([a[i] === b[j] ? "ok" : "sub", i, j]); }
      else if (i && cost[i][j] === cost[i - 1][j] + 1) { i -= 1; steps.push(["del", i, -1]); }
      else { j -= 1; steps.push(["ins", -1, j]); }
    }
    return steps.reverse();
  };

  const build = (row) => {
    const id = `u${row}`;
    const [words, starts, ends, sure, offsets, stops] = data.words[row];
    const length = numbers.seconds[row] * 1000;
    const timed = words.length > 0 && starts.every((start, i) => start >= 0 && ends[i] >= start);
    const sound = data.waves[row] !== "";
    const marks = words.map(() => []); // elements that light up with each word
    const playable = sound && timed;
    const seek = (i) => playFrom(id, starts[i] / 1000);
    const tip = (i) => timed ? `${(starts[i] / 1000).toFixed(2)} to ${(ends[i] / 1000).toFixed(2)} s${sure[i] >= 0 && sure.length ? `, confidence ${sure[i]} %` : ""}` : "";
    const unsure = (i) => (sure.length && sure[i] >= 0 && sure[i] < 30 ? " unsure" : "");
    const word = (shownText, at, more = "") => {
      const about = { class: `${playable ? "word" : ""}${more}`, title: tip(at[0]) };
      const element = playable ? make("button", { type: "button", onclick: () => seek(at[0]), ...about }, shownText) : make("span", about, shownText);
      for (const i of at) marks[i].push(element);
      return element;
    };

    const track = make("div", { class: "track" });
    const canvas = make("canvas", sound ? { tabindex: "0", role: "slider", "aria-label": "Place in the sound, seconds", "aria-valuemin": "0", "aria-valuemax": numbers.seconds[row], "aria-valuenow": "0" } : { "aria-hidden": "true" });
    track.append(canvas);
    if (timed) {
      track.style.width = `${Math.max(0, Math.min(8000, words.length * 46))}px`;
      words.forEach((value, i) => {
        const about = { class: `at${unsure(i)}`, title: `${value}: ${tip(i)}` };
        const at = playable ? make("button", { type: "button", onclick: () => seek(i), ...about }, value) : make("span", about, value);
        at.style.left = `${(100 * starts[i]) / length}%`;
        at.style.width = `${(100 * (ends[i] - starts[i])) / length}%`;
        marks[i].push(at);
        track.append(at);
      });
    }
    const mine = () => now !== null && now.id === id;
    const go = (seconds) => { load(id); audio.currentTime = seconds; };
    canvas.addEventListener("click", (event) => { const box = canvas.getBoundingClientRect(); if (sound) playFrom(id, (numbers.seconds[row] * (event.clientX - box.left)) / box.width); });
    if (sound) slider(canvas, numbers.seconds[row], () => (mine() ? audio.currentTime : 0), go, () => toggle(id));

    const readings = make("div", { class: "readings" });
    const reading = (title, parts) => readings.append(make("div", { "data-reading": title }, make("h4", {}, title), make("p", { dir: "auto", ...(playable ? { role: "group", "aria-label": `Words ${title}: arrows move, Enter plays` } : {}) }, ...parts)));
    const raw = data.texts.raw ? data.texts.raw[row] : "";
    if (raw) {
      const letters = Array.from(raw);
      const parts = [];
      let from = 0;
      for (let i = 0; i < offsets.length; i += 1) {
        const at = [i];
        while (i + 1 < offsets.length && offsets[i + 1] === offsets[i]) at.push(i += 1);
        if (offsets[i] < from || stops[i] > letters.length) continue;
        const piece = letters.slice(offsets[i], stops[i]).join("");
        parts.push(letters.slice(from, offsets[i]).join(""), word(piece, at, plain(piece) === plain(at.map((k) => words[k]).join(" ")) ? "" : " changed"));
        from = stops[i];
      }
      reading("as written", [...parts, letters.slice(from).join("")]);
    }
    const heard = data.texts.heard ? data.texts.heard[row] : "";
    const steps = heard && words.length ? difference(words, heard.split(/\s+/).filter(Boolean).slice(0, 400)) : [];
    const off = new Set(steps.filter(([kind]) => kind === "del" || kind === "sub").map(([, i]) => i));
    reading("normalised", words.length ? words.flatMap((value, i) => [word(value, [i], unsure(i) + (off.has(i) ? " changed" : "")), " "]) : [text[row]]);
    if (heard) {
      const spoken = heard.split(/\s+/).filter(Boolean);
      reading("second reading", steps.length ? steps.flatMap(([kind, i, j]) => {
        if (kind === "ok") return [word(spoken[j], [i]), " "];
        const label = { sub: `instead of “${words[i]}”`, del: "not heard", ins: "extra" }[kind];
        return [make("span", { class: kind, title: label }, kind === "del" ? words[i] : spoken[j]), " "];
      }) : [heard]);
    }
    // The whole recording: what was kept and left out of it, and this row's place.
    const strip = [];
    if (data.strips && data.start) {
      const [seconds, cells] = data.strips.of[data.strips.at[row]];
      const place = (from, to) => `left: ${(100 * from) / seconds}%; width: ${(100 * (to - from)) / seconds}%`;
      const each = seconds / cells.length;
      const bar = make("div", { class: "strip", role: "img", "aria-label": `The whole recording, ${seconds.toFixed(0)} s, with what was kept, what was left out, and this utterance from ${data.start[row].toFixed(1)} s` });
      for (const run of cells.matchAll(/1+|2+/g)) bar.append(make("i", { class: run[0][0] === "2" ? "in" : "out", style: place(run.index * each, (run.index + run[0].length) * each) }));
      bar.append(make("i", { class: "here", style: place(data.start[row], data.start[row] + numbers.seconds[row]) }));
      strip.push(make("p", { class: "facts" }, `The whole recording, ${seconds.toFixed(0)} s: kept, left out, and framed what is shown here.`), bar);
    }
    const facts = [`key ${data.key[row]}`];
    for (const column of ["name", "speaker", "language", "licence", "attribution", "source", "condition"]) if (data.names[column] && name(column, row)) facts.push(`${column} ${name(column, row)}`);
    if (data.start) facts.push(`from ${data.start[row].toFixed(2)} s of the recording`);
    for (const column of ["cer", "edge_cer", "words_per_s", "loss", "wildcard_share", "clipped_share"]) if (numbers[column] && numbers[column][row] !== null) facts.push(`${LABELS[column]} ${PERCENT.has(column) ? shown(column, numbers[column][row]) : numbers[column][row]}`);

    const scroll = make("div", { class: "scroll" }, track);
    const top = sound || timed ? [make("div", { class: "line" }, ...(sound ? [player(id)] : []), scroll)] : [];
    if (!sound) top.push(make("p", { class: "facts" }, "The sound of this row is not in the page."));
    const holder = make("tr", { class: "detail" }, make("td", { colspan: body.parentNode.tHead.rows[0].cells.length + 1 }, make("div", { class: "player" }, ...top, readings, ...strip, make("p", { class: "facts" }, facts.join(" · ")))));

    if (playable) for (const group of [track, ...readings.querySelectorAll("p")]) roving(group, ".at, .word");
    let lit = -1;
    const step = () => {
      const time = mine() ? audio.currentTime : 0;
      if (sound) bars(canvas, data.waves[row], mine() ? Math.min(1, time / numbers.seconds[row]) : 0);
      canvas.setAttribute("aria-valuenow", time.toFixed(1));
      let at = -1;
      if (mine() && timed && !(audio.paused && time === 0)) {
        for (let low = 0, high = words.length - 1; low <= high;) { const middle = (low + high) >> 1; if (starts[middle] <= 1000 * time) { at = middle; low = middle + 1; } else high = middle - 1; }
        if (at >= 0 && 1000 * time > Math.max(ends[at], starts[at] + 60)) at = -1; // words of no length still light up
      }
      if (at === lit) return;
      if (lit >= 0) for (const element of marks[lit]) element.classList.remove("lit");
      if (at >= 0) {
        for (const element of marks[at]) element.classList.add("lit");
        const x = (starts[at] / length) * track.clientWidth;
        if (x < scroll.scrollLeft || x > scroll.scrollLeft + scroll.clientWidth * 0.85) scroll.scrollLeft = x - scroll.clientWidth * 0.2;
      }
      lit = at;
    };
    let running = false;
    follow = () => {
      step();
      if (running || audio.paused || !now || now.id !== id) return;
      running = true;
      const tick = () => { step(); if (open === row && !audio.paused && now.id === id) requestAnimationFrame(tick); else running = false; };
      requestAnimationFrame(tick);
    };
    return { row: holder, draw: step };
  };

  // ---- keys
  body.addEventListener("keydown", (event) => {
    const line = event.target.closest("tr[data-row]");
    if (!line || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const lines = [...body.querySelectorAll("tr[data-row]")];
      const other = lines[lines.indexOf(line) + (event.key === "ArrowDown" ? 1 : -1)];
      if (other) { event.preventDefault(); other.querySelector(".open").focus(); }
    } else if (event.key.toLowerCase() === "p" && data.waves[line.dataset.row]) toggle(`u${line.dataset.row}`);
  });
  const redraw = () => { paint(); draw(); if (detail) detail.draw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", later(() => { if (innerWidth !== width) { width = innerWidth; redraw(); } })); // not for a phone's bars
  refresh();
})();
