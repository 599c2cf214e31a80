
// A long table of which only a page is in the document. Columns are arrays, and a row is a number into them.
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
const plain = (value) => value.normalize("NFKC").toLowerCase();
const namesIn = (data) => (column, row) => data.names[column].of[data.names[column].at[row]];
const later = (call) => { let timer = 0; return () => { clearTimeout(timer); timer = setTimeout(call, 60); }; };

// look: table, its id; hint of the search; labels, percent and digits, of columns; text, by which the column "text" is sorted;
// hay(row), what is searched; picks, names to choose from; ranges, numbers with bounds; ticks, [id, words, keep(row)];
// heads, [column, words] behind `lead` columns without; line(row), its <tr>s; before(rows) and after() a page is drawn;
// sums(rows), what is told about the rows that were found.
function paged(data, look) {
  const count = data.key.length;
  const numbers = data.numbers;
  const hay = Array.from({ length: count }, (_, row) => plain(look.hay(row).join("\n")));
  const varied = (column) => data.names[column] && data.names[column].of.length > 1;
  const label = (column) => look.labels[column] || column;
  const shown = (column, value) => value === null ? "–" : look.percent.has(column) ? (100 * value).toFixed(1) : value.toFixed(look.digits[column] ?? 1);

  // ---- filters
  const state = { words: [], names: {}, low: {}, high: {}, ticks: new Set(), sort: null, down: false, page: 0 };
  const PAGE = 50;
  let order = [];
  const filters = document.getElementById("filters");
  const again = () => { state.page = 0; refresh(); };
  const search = make("input", { type: "search", id: "search", placeholder: look.hint, autocomplete: "off" });
  search.addEventListener("input", later(() => { state.words = plain(search.value).split(/\s+/).filter(Boolean); again(); }));
  filters.append(make("label", { class: "search" }, "Search", search));
  for (const column of look.picks.filter(varied)) {
    const select = make("select", { "data-column": column, onchange: () => { state.names[column] = select.value === "" ? undefined : Number(select.value); again(); } });
    select.append(make("option", { value: "" }, "all"), ...data.names[column].of.map((value, i) => make("option", { value: i }, value || "unknown")));
    filters.append(make("label", {}, column, select));
  }
  for (const column of look.ranges.filter((c) => numbers[c])) {
    const bound = (side, word) => {
      const input = make("input", { type: "number", step: "any", "data-column": column, "data-side": side, "aria-label": `${label(column)} ${word}`, placeholder: word });
      input.addEventListener("input", later(() => { state[side][column] = input.value === "" ? undefined : Number(input.value) / (look.percent.has(column) ? 100 : 1); again(); }));
      return input;
    };
    filters.append(make("fieldset", {}, make("legend", {}, column === "seconds" ? "seconds" : label(column)), make("div", {}, bound("low", "from"), "–", bound("high", "to"))));
  }
  for (const [id, words] of look.ticks) {
    const tick = make("input", { type: "checkbox", id, onchange: () => { state.ticks[tick.checked ? "add" : "delete"](id); again(); } });
    filters.append(make("label", { class: "tick" }, tick, words));
  }
  filters.append(make("button", { type: "button", id: "reset", onclick: () => {
    for (const input of filters.querySelectorAll("input, select")) { if (input.type === "checkbox") input.checked = false; else input.value = ""; }
    Object.assign(state, { words: [], names: {}, low: {}, high: {}, ticks: new Set(), sort: null });
    for (const head of headCells) head.removeAttribute("aria-sort");
    again();
  } }, "Reset"));
  const inside = (bounds, row, fits) => Object.entries(bounds).every(([column, bound]) => bound === undefined || (numbers[column][row] !== null && fits(numbers[column][row], bound)));
  const keep = (row) => state.words.every((word) => hay[row].includes(word))
    && Object.entries(state.names).every(([column, at]) => at === undefined || data.names[column].at[row] === at)
    && inside(state.low, row, (value, low) => value >= low) && inside(state.high, row, (value, high) => value <= high)
    && look.ticks.every(([id, , fits]) => !state.ticks.has(id) || fits(row));

  // ---- order: unknown numbers last, equal ones as they came
  const ranks = new Map();
  const valuesOf = (column) => {
    if (numbers[column]) return numbers[column];
    if (data.names[column]) return data.names[column].at;
    if (!ranks.has(column)) {
      const sorted = look.text.map((_, row) => row).sort((a, b) => (look.text[a] < look.text[b] ? -1 : look.text[a] > look.text[b] ? 1 : a - b));
      const rank = new Array(count);
      sorted.forEach((row, i) => { rank[row] = i; });
      ranks.set(column, rank);
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
  const table = document.getElementById(look.table);
  const body = make("tbody");
  const headCells = look.heads.map(([column, words]) => make("th", { scope: "col", "data-column": column, class: numbers[column] ? "" : "text" },
    make("button", { type: "button", onclick: () => {
      state.down = state.sort === column ? !state.down : false;
      state.sort = column;
      for (const head of headCells) head.removeAttribute("aria-sort");
      headCells.find((head) => head.dataset.column === column).setAttribute("aria-sort", state.down ? "descending" : "ascending");
      again();
    } }, words)));
  table.append(make("thead", {}, make("tr", {}, make("th", { "aria-label": "Sound", colspan: look.lead }), ...headCells)), body);

  const pages = document.getElementById("pages");
  const turn = (by) => () => { state.page += by; draw(); table.scrollIntoView({ block: "nearest" }); };
  const back = make("button", { type: "button", onclick: turn(-1) }, "Previous");
  const next = make("button", { type: "button", onclick: turn(1) }, "Next");
  const place = make("span");
  pages.append(back, place, next);

  const draw = () => {
    const rows = order.slice(state.page * PAGE, state.page * PAGE + PAGE);
    look.before(rows);
    body.replaceChildren(...rows.flatMap(look.line));
    if (!rows.length) body.append(make("tr", {}, make("td", { colspan: look.heads.length + look.lead, class: "text" }, "No utterance is like that.")));
    const last = Math.max(0, Math.ceil(order.length / PAGE) - 1);
    back.disabled = state.page <= 0;
    next.disabled = state.page >= last;
    place.textContent = `page ${state.page + 1} of ${last + 1}`;
    look.after();
  };
  const found = document.getElementById("found");
  const refresh = () => {
    const rows = [];
    for (let row = 0; row < count; row += 1) if (keep(row)) rows.push(row);
    const of = `${rows.length.toLocaleString("en")} of ${count.toLocaleString("en")} utterances`;
    found.textContent = [of, ...look.sums(rows)].join(", ");
    order = sorted(rows);
    draw();
  };
  return { body, draw, refresh, shown };
}
