
// ---- Explorer: a table of a sample of the data set. Rows are numbers into columns; only a page of them is in the DOM.
(() => {
  const block = document.getElementById("rows");
  const audio = new Audio();
  let now = null; // {id, button, row}: what the one audio element holds

  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (key === "class") element.className = value;
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  };

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
  const name = (column, row) => data.names[column].of[data.names[column].at[row]];
  const numbers = { seconds: data.seconds, ...data.numbers };
  const text = data.texts.text || data.texts.raw || data.key;
  const plain = (value) => value.normalize("NFKC").toLowerCase();
  const hay = Array.from({ length: count }, (_, row) => plain(
    [...Object.values(data.texts).map((texts) => texts[row]), ...["speaker", "name", "attribution"].filter((c) => data.names[c]).map((c) => name(c, row)), data.key[row]].join("\n")));
  const LABELS = { seconds: "s", cer: "CER %", edge_cer: "edge CER %", confidence: "conf.", snr_db: "SNR dB", words_per_s: "words/s", loss: "loss", wildcard_share: "untranscribed", clipped_share: "clipped" };
  const PERCENT = new Set(["cer", "edge_cer"]);
  const shown = (column, value) => value === null ? "–" : PERCENT.has(column) ? (100 * value).toFixed(1) : value.toFixed(column === "confidence" ? 2 : 1);
  const fits = (columns, from) => columns.filter((column) => from[column]);
  const varied = (column) => data.names[column] && data.names[column].of.length > 1;
  const nameColumns = ["speaker", "language", "licence", "tier", "split", "set"].filter((c) => c === "speaker" || c === "tier" ? data.names[c] : varied(c));
  const ranged = fits(["seconds", "cer", "edge_cer", "confidence", "snr_db", "words_per_s"], numbers);
  const numberColumns = fits(["seconds", "cer", "confidence", "snr_db"], numbers); // the others are told in an opened row

  // ---- filters
  const state = { words: [], names: {}, low: {}, high: {}, sound: false, sort: null, down: false, page: 0, open: null };
  const PAGE = 50;
  let order = [];
  const later = (call) => { let timer = 0; return () => { clearTimeout(timer); timer = setTimeout(call, 60); }; };
  const filters = document.getElementById("filters");
  const again = () => { state.page = 0; refresh(); };
  const search = make("input", { type: "search", id: "search", placeholder: "words, speaker, recording or key", autocomplete: "off" });
  search.addEventListener("input", later(() => { state.words = plain(search.value).split(/\s+/).filter(Boolean); again(); }));
  filters.append(make("label", { class: "search" }, "Search", search));
  for (const column of ["speaker", "language", "licence", "source", "tier", "split", "set", "condition"].filter(varied)) {
    const select = make("select", { "data-column": column, onchange: () => { state.names[column] = select.value === "" ? undefined : Number(select.value); again(); } });
    select.append(make("option", { value: "" }, "all"), ...data.names[column].of.map((value, i) => make("option", { value: i }, value || "unknown")));
    filters.append(make("label", {}, column, select));
  }
  for (const column of ranged) {
    const bound = (side, word) => {
      const input = make("input", { type: "number", step: "any", "data-column": column, "data-side": side, "aria-label": `${LABELS[column]} ${word}`, placeholder: word });
      input.addEventListener("input", later(() => { state[side][column] = input.value === "" ? undefined : Number(input.value) / (PERCENT.has(column) ? 100 : 1); again(); }));
      return input;
    };
    filters.append(make("fieldset", {}, make("legend", {}, column === "seconds" ? "seconds" : LABELS[column]), make("div", {}, bound("low", "from"), "–", bound("high", "to"))));
  }
  if (data.waves.some(Boolean)) {
    const tick = make("input", { type: "checkbox", id: "sound", onchange: () => { state.sound = tick.checked; again(); } });
    filters.append(make("label", { class: "tick" }, tick, "with sound"));
  }
  filters.append(make("button", { type: "button", id: "reset", onclick: () => {
    for (const input of filters.querySelectorAll("input, select")) { if (input.type === "checkbox") input.checked = false; else input.value = ""; }
    Object.assign(state, { words: [], names: {}, low: {}, high: {}, sound: false, sort: null });
    for (const head of headCells) head.removeAttribute("aria-sort");
    again();
  } }, "Reset"));
  const keep = (row) => state.words.every((word) => hay[row].includes(word))
    && Object.entries(state.names).every(([column, at]) => at === undefined || data.names[column].at[row] === at)
    && Object.entries(state.low).every(([column, low]) => low === undefined || (numbers[column][row] !== null && numbers[column][row] >= low))
    && Object.entries(state.high).every(([column, high]) => high === undefined || (numbers[column][row] !== null && numbers[column][row] <= high))
    && (!state.sound || data.waves[row] !== "");

  // ---- order: unknown numbers last, equal ones as they came
  const ranks = new Map();
  const valuesOf = (column) => {
    if (numbers[column]) return numbers[column];
    if (!ranks.has(column)) {
      if (data.names[column]) ranks.set(column, data.names[column].at);
      else {
        const sorted = text.map((_, row) => row).sort((a, b) => (text[a] < text[b] ? -1 : text[a] > text[b] ? 1 : a - b));
        const rank = new Array(count);
        sorted.forEach((row, i) => { rank[row] = i; });
        ranks.set(column, rank);
      }
    }
    return ranks.get(column);
  };
  const sorted = (rows) => {
    if (!state.sort) return rows;
    const values = valuesOf(state.sort);
    const sign = state.down ? -1 : 1;
    return rows.sort((a, b) => values[a] === values[b] ? a - b : values[a] === null ? 1 : values[b] === null ? -1 : sign * (values[a] - values[b]));
  };

  // ---- table
  const table = document.getElementById("utterances");
  const body = make("tbody");
  const heads = [["text", "text"], ...nameColumns.map((c) => [c, c]), ...numberColumns.map((c) => [c, LABELS[c]])];
  const headCells = heads.map(([column, label]) => make("th", { scope: "col", "data-column": column, class: numbers[column] ? "" : "text" },
    make("button", { type: "button", onclick: () => {
      state.down = state.sort === column ? !state.down : false;
      state.sort = column;
      for (const head of headCells) head.removeAttribute("aria-sort");
      headCells.find((head) => head.dataset.column === column).setAttribute("aria-sort", state.down ? "descending" : "ascending");
      again();
    } }, label)));
  table.append(make("thead", {}, make("tr", {}, make("th", { "aria-label": "Sound", colspan: "2" }), ...headCells)), body);

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
    const open = state.open === row;
    const cells = [make("td", {}, data.waves[row] ? player(id) : ""), make("td", {}, data.waves[row] ? make("canvas", { class: "thumb", "aria-hidden": "true" }) : "")];
    const button = make("button", { type: "button", class: "open", "aria-expanded": open, onclick: () => choose(row) }, text[row] || "(no text)");
    cells.push(make("td", { class: "words" }, button));
    for (const column of nameColumns) {
      const value = name(column, row);
      const inner = column === "tier" && value ? make("span", { class: `tier ${["clean", "dirty"].includes(value) ? value : ""}` }, value) : value || "–";
      cells.push(make("td", { class: "name", title: value }, inner));
    }
    for (const column of numberColumns) cells.push(make("td", {}, shown(column, numbers[column][row])));
    return make("tr", { "data-row": row, class: open ? "chosen" : "" }, ...cells);
  };

  const pages = document.getElementById("pages");
  const turn = (by) => () => { state.page += by; draw(); table.scrollIntoView({ block: "nearest" }); };
  const back = make("button", { type: "button", onclick: turn(-1) }, "Previous");
  const next = make("button", { type: "button", onclick: turn(1) }, "Next");
  const place = make("span");
  pages.append(back, place, next);

  const draw = () => {
    const rows = order.slice(state.page * PAGE, state.page * PAGE + PAGE);
    if (!rows.includes(state.open)) close();
    body.replaceChildren(...rows.map(line));
    if (!rows.length) body.append(make("tr", {}, make("td", { colspan: heads.length + 2, class: "text" }, "No utterance is like that.")));
    if (state.open !== null) body.querySelector(`[data-row="${state.open}"]`).after(detail.row);
    const last = Math.max(0, Math.ceil(order.length / PAGE) - 1);
    back.disabled = state.page <= 0;
    next.disabled = state.page >= last;
    place.textContent = `page ${state.page + 1} of ${last + 1}`;
    for (const canvas of body.querySelectorAll("canvas.thumb")) bars(canvas, data.waves[canvas.closest("tr").dataset.row]);
    show();
  };
  const found = document.getElementById("found");
  const refresh = () => {
    const rows = [];
    let seconds = 0;
    for (let row = 0; row < count; row += 1) if (keep(row)) { rows.push(row); seconds += data.seconds[row]; }
    order = sorted(rows);
    found.textContent = `${rows.length.toLocaleString("en")} of ${count.toLocaleString("en")} utterances, ${(seconds / 3600).toFixed(2)} h`;
    draw();
  };

  // ---- one row opened: wave, words in time, and three readings side by side
  let detail = null;
  const close = () => {
    if (state.open === null) return;
    if (now && now.id === `u${state.open}`) audio.pause();
    state.open = null;
    detail = null;
    follow = () => {};
  };
  const choose = (row) => {
    const same = state.open === row;
    close();
    if (!same) { state.open = row; detail = build(row); }
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
    const length = data.seconds[row] * 1000;
    const timed = words.length > 0 && starts.every((start, i) => start >= 0 && ends[i] >= start);
    const sound = data.waves[row] !== "";
    const marks = words.map(() => []); // elements that light up with each word
    const seek = (i) => { if (sound && timed) playFrom(id, starts[i] / 1000); };
    const tip = (i) => timed ? `${(starts[i] / 1000).toFixed(2)} to ${(ends[i] / 1000).toFixed(2)} s${sure[i] >= 0 && sure.length ? `, confidence ${sure[i]} %` : ""}` : "";
    const unsure = (i) => (sure.length && sure[i] >= 0 && sure[i] < 30 ? " unsure" : "");
    const word = (shownText, at, more = "") => {
      const element = make("span", { class: `${timed ? "word" : ""}${more}`, title: tip(at[0]), onclick: () => seek(at[0]) }, shownText);
      for (const i of at) marks[i].push(element);
      return element;
    };

    const track = make("div", { class: "track" });
    const canvas = make("canvas", { tabindex: "0", role: "slider", "aria-label": "Place in the sound, seconds", "aria-valuemin": "0", "aria-valuemax": data.seconds[row], "aria-valuenow": "0" });
    track.append(canvas);
    if (timed) {
      track.style.width = `${Math.max(0, Math.min(8000, words.length * 46))}px`;
      words.forEach((value, i) => {
        const at = make("button", { type: "button", class: `at${unsure(i)}`, title: `${value}: ${tip(i)}`, tabindex: "-1", onclick: () => seek(i) }, value);
        at.style.left = `${(100 * starts[i]) / length}%`;
        at.style.width = `${(100 * (ends[i] - starts[i])) / length}%`;
        marks[i].push(at);
        track.append(at);
      });
    }
    const go = (seconds) => { load(id); audio.currentTime = Math.max(0, Math.min(data.seconds[row], seconds)); };
    canvas.addEventListener("click", (event) => { const box = canvas.getBoundingClientRect(); if (sound) playFrom(id, (data.seconds[row] * (event.clientX - box.left)) / box.width); });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by || !sound) return;
      event.preventDefault();
      event.stopPropagation();
      go((now && now.id === id ? audio.currentTime : 0) + by);
    });

    const readings = make("div", { class: "readings" });
    const reading = (title, parts) => readings.append(make("div", { "data-reading": title }, make("h4", {}, title), make("p", { dir: "auto" }, ...parts)));
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
    const facts = [`key ${data.key[row]}`];
    for (const column of ["name", "speaker", "language", "licence", "attribution", "source", "condition"]) if (data.names[column] && name(column, row)) facts.push(`${column} ${name(column, row)}`);
    if (data.start) facts.push(`from ${data.start[row].toFixed(2)} s of the recording`);
    for (const column of ["cer", "edge_cer", "words_per_s", "loss", "wildcard_share", "clipped_share"]) if (numbers[column] && numbers[column][row] !== null) facts.push(`${LABELS[column]} ${PERCENT.has(column) ? shown(column, numbers[column][row]) : numbers[column][row]}`);

    const scroll = make("div", { class: "scroll" }, track);
    const top = sound || timed ? [make("div", { class: "line" }, ...(sound ? [player(id)] : []), scroll)] : [];
    if (!sound) top.push(make("p", { class: "facts" }, "The sound of this row is not in the page."));
    const holder = make("tr", { class: "detail" }, make("td", { colspan: heads.length + 2 }, make("div", { class: "player" }, ...top, readings, make("p", { class: "facts" }, facts.join(" · ")))));

    let lit = -1;
    const step = () => {
      const mine = now !== null && now.id === id;
      const time = mine ? audio.currentTime : 0;
      if (sound) bars(canvas, data.waves[row], mine ? Math.min(1, time / data.seconds[row]) : 0);
      canvas.setAttribute("aria-valuenow", time.toFixed(1));
      let at = -1;
      if (mine && timed && !(audio.paused && time === 0)) {
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
      const tick = () => { step(); if (state.open === row && !audio.paused && now.id === id) requestAnimationFrame(tick); else running = false; };
      requestAnimationFrame(tick);
    };
    return { row: holder, draw: step };
  };

  // ---- keys
  table.addEventListener("keydown", (event) => {
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
  addEventListener("resize", later(redraw));
  refresh();
})();
