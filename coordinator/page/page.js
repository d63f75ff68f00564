"use strict";
// Texts of devices are put into the page with textContent only, never as HTML.
const SVG = "http://www.w3.org/2000/svg", COLOURS = 10, LINES = 200, ROWS = 200, LEFT = 88, HEIGHT = 220;
const $ = (id) => document.getElementById(id);
const now = {loaded: false, runs: new Map(), queue: null, verbs: [], operator: "", log: []};
let skew = 0, loading = null, drawn = false, stream = null, waiting = 0, follows = true;
let chosen = "", shown = "";  // The run that a person has chosen, and the run that the page shows.

// The state: a snapshot of /now, and the events after it.
const apply = {
  run: (row) => { entry(row.run).run = row; },
  round: (row) => { entry(row.run).rounds.set(row.round, row); },
  device: ({run, rows}) => {
    const {devices} = entry(run);
    rows.forEach((row) => devices.set(row.name, {...devices.get(row.name), ...row}));
  },
  queue: ({rows, order, waiting, over}) => {
    const known = new Map([...(now.queue?.rows ?? []), ...rows].map((row) => [row.run, row]));
    now.queue = {rows: order.map((name) => known.get(name)), waiting, over};
  },
  log: (row) => { now.log = [...now.log, row].slice(-LINES); },
};

function entry(name) {
  if (!now.runs.has(name)) now.runs.set(name, {run: {run: name}, rounds: new Map(), devices: new Map()});
  return now.runs.get(name);
}

async function load() {
  const mine = loading = [], answer = await fetch("now", {cache: "no-store"});
  if (!answer.ok) throw new Error(await answer.text());
  const found = await answer.json();
  if (loading !== mine) return;  // A later gap reads the snapshot again.
  skew = Date.now() / 1000 - found.time;
  const {runs, queue, verbs, operator, log} = found;
  Object.assign(now, {loaded: true, queue, verbs, operator, log});
  now.runs = new Map(runs.map(({rounds, devices, ...run}) => [run.run, {
    run, rounds: new Map(rounds.map((row) => [row.round, row])), devices: new Map(devices.map((row) => [row.name, row])),
  }]));
  $("log").setAttribute("aria-live", "off");  // Only lines that come later are read out.
  loading = null;
  for (const one of mine.filter(([id]) => id > found.n)) take(...one);
  schedule();
}

function take(id, kind, data) {
  apply[kind](data);
  schedule();
}

// The run that the page shows: its row of the queue, and its state while it is or was active.
const isOver = ({row, live}) => (row ? row.over : live?.run.state === "ended");
const found = (name) => ({name, row: now.queue?.rows.find((row) => row.run === name), live: now.runs.get(name)});

// A run that nobody has chosen is shown until it is over. Then the page shows the first run of the queue.
function select() {
  const names = now.queue ? now.queue.rows.map((row) => row.run) : [...now.runs.keys()], one = found(shown);
  if (chosen && (now.queue || names.includes(chosen))) shown = chosen;
  else if (!names.includes(shown) || isOver(one)) shown = names[0] ?? "";
  return found(shown);
}

function listen() {
  stream?.close();
  stream = new EventSource("events");
  stream.addEventListener("gap", () => load().catch(() => { loading = null; stream.close(); again(); }));
  for (const kind of Object.keys(apply)) {
    stream.addEventListener(kind, (event) => {
      const one = [Number(event.lastEventId), kind, JSON.parse(event.data)];
      if (loading) loading.push(one); else take(...one);
    });
  }
  stream.onopen = () => told("live", false);
  stream.onerror = () => {
    const ended = !now.queue && shown && isOver(found(shown));
    told(ended ? "The run is over and its coordinator has ended; this is its last state."
      : "The connection is lost; the page tries again. This is the last state that it has.", !ended);
    if (stream.readyState === EventSource.CLOSED) again();
  };
}

// A browser does not tell why it may not open a stream, so the snapshot is asked.
function again() {
  fetch("now").then(async (answer) => { if (answer.status === 401) told(`This page needs a login: ${await answer.text()}`, true); },
    () => {});
  clearTimeout(waiting);
  waiting = setTimeout(listen, 5000);
}

function told(words, lost) {
  text($("link"), words);
  $("link").classList.toggle("lost", lost);
}

// Drawing: at most once in a frame, and only what has changed.
function schedule() {
  if (!drawn) requestAnimationFrame(() => { drawn = false; draw(); });
  drawn = true;
}

function text(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

function element(tag, classes, words) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  if (words !== undefined) made.textContent = words;
  return made;
}

function shape(tag, attributes, words) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

// Put rows into a table. A row stays the same node as long as its key stays, so that focus and selection stay.
function fill(table, head, rows, put = text) {
  const top = table.tHead ?? table.createTHead(), body = table.tBodies[0] ?? table.createTBody();
  if (top.textContent !== head.join("")) {
    const line = element("tr");
    line.append(...head.map((words) => { const th = element("th", "", words); th.scope = "col"; return th; }));
    top.replaceChildren(line);
  }
  const known = new Map([...body.rows].map((line) => [line.dataset.key, line]));
  rows.forEach(([key, ...cells], place) => {
    const line = known.get(String(key)) ?? element("tr");
    known.delete(String(key));
    line.dataset.key = key;
    while (line.cells.length < cells.length) line.append(element("td"));
    while (line.cells.length > cells.length) line.lastChild.remove();
    cells.forEach((words, i) => put(line.cells[i], words, i));
    if (body.rows[place] !== line) body.insertBefore(line, body.rows[place] ?? null);
  });
  known.forEach((line) => line.remove());
}

function bytes(size) {
  for (const unit of ["B", "kB", "MB"]) {
    if (size < 1000) return `${size.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(2)} GB`;
}

function age(seconds) {
  const s = Math.max(0, Math.round(seconds));
  return s < 120 ? `${s} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
}

const percent = (value) => (value === undefined ? "" : `${(100 * value).toFixed(1)} %`);
const clock = (unix) => new Date((unix + skew) * 1000).toLocaleTimeString();

function key(list, names) {
  if (list.dataset.names === names.join("\n")) return;
  list.dataset.names = names.join("\n");
  list.replaceChildren(...names.map((name, i) => {
    const item = element("li"), box = shape("svg", {viewBox: "0 0 12 12", "aria-hidden": "true"});
    box.append(shape("rect", {width: 12, height: 12, class: `c${i}`}));
    item.append(box, name);
    return item;
  }));
}

// A chart begins with its axes: marks are [y, words], places are the rounds that get a number.
function axes(svg, marks, rounds, x) {
  const width = svg.clientWidth || 300;
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const parts = marks.flatMap(([y, words]) => [shape("line", {x1: LEFT, x2: width, y1: y, y2: y}),
    shape("text", {x: LEFT - 6, y: y + 4, class: "end"}, words)]);
  const step = Math.max(1, Math.ceil(rounds.length / Math.max(1, Math.floor((width - LEFT) / 60))));
  rounds.forEach((row, i) => {
    if (i % step === 0) parts.push(shape("text", {x: x(i), y: HEIGHT - 4, class: "middle"}, row.round));
  });
  return parts;
}

function drawAccuracy(rounds) {
  const svg = $("accuracy"), measured = rounds.filter((row) => Object.keys(row.accuracy).length);
  const domains = [...new Set(measured.flatMap((row) => Object.keys(row.accuracy)))].sort();
  const room = (svg.clientWidth || 300) - LEFT - 20, last = Math.max(1, measured.length - 1);
  const x = (i) => LEFT + 10 + (room * i) / last, y = (value) => 190 - 180 * value;
  const parts = axes(svg, [0, 0.25, 0.5, 0.75, 1].map((v) => [y(v), `${100 * v} %`]), measured, x);
  domains.slice(0, COLOURS).forEach((domain, c) => {
    const points = measured.flatMap((row, i) => (domain in row.accuracy ? [[x(i), y(row.accuracy[domain])]] : []));
    parts.push(shape("polyline", {class: `c${c}`, points: points.map((p) => p.join()).join(" ")}));
    if (points.length) parts.push(shape("circle", {class: `c${c}`, r: 3, cx: points.at(-1)[0], cy: points.at(-1)[1]}));
  });
  svg.replaceChildren(...parts);
  key($("accuracy-key"), domains.slice(0, COLOURS));
  fill($("accuracy-table"), ["round", "seconds", "answered", ...domains], measured.slice(-ROWS).reverse().map((row) =>
    [row.round, row.kind === "training" ? row.round : "final", row.seconds.toFixed(1), `${row.answered} of ${row.asked}`,
      ...domains.map((domain) => percent(row.accuracy[domain]))]));
}

function drawBytes(rounds) {
  const svg = $("bytes"), width = (svg.clientWidth || 300) - LEFT, shown = rounds.slice(-Math.floor(width / 5));
  const kinds = [...new Set(rounds.flatMap((row) => [...Object.keys(row.up), ...Object.keys(row.down)]))].sort();
  const sum = (row, way) => Object.values(row[way]).reduce((a, b) => a + b, 0);
  const up = Math.max(1, ...shown.map((row) => sum(row, "up"))), down = Math.max(1, ...shown.map((row) => sum(row, "down")));
  const scale = 176 / (up + down), zero = 12 + up * scale, slot = width / Math.max(1, shown.length), bar = Math.min(40, slot * 0.7);
  const x = (i) => LEFT + slot * (i + 0.5);
  // A label that would touch the label of the axis is left out.
  const marks = shown.length ? [[12, `${bytes(up)} up`], [zero, "0"], [188, `${bytes(down)} down`]] : [[zero, "0"]];
  const parts = axes(svg, marks.filter(([at]) => at === zero || Math.abs(at - zero) > 14), shown, x);
  shown.forEach((row, i) => ["up", "down"].forEach((way) => {
    let edge = zero;
    kinds.forEach((kind, c) => {
      const height = (row[way][kind] ?? 0) * scale;
      if (way === "up") edge -= height;
      if (height) parts.push(shape("rect", {class: `c${c % COLOURS}`, x: x(i) - bar / 2, width: bar, y: edge, height}));
      if (way === "down") edge += height;
    });
  }));
  svg.replaceChildren(...parts);
  key($("bytes-key"), kinds.slice(0, COLOURS));
  const ways = kinds.flatMap((kind) => [["up", kind], ["down", kind]]);
  fill($("bytes-table"), ["round", ...ways.map(([way, kind]) => `${kind} ${way}`)], rounds.slice(-ROWS).reverse().map((row) =>
    [row.round, row.kind === "training" ? row.round : "final", ...ways.map(([way, kind]) => bytes(row[way][kind] ?? 0))]));
}

function drawTimes() {
  const {live} = found(shown), run = live?.run, at = Date.now() / 1000 - skew, parts = [];
  if (run && !run.closed) {
    parts.push(`${run.present} ${run.present === 1 ? "device" : "devices"} present`);
    if (run.state === "running" && run.phase) {
      parts.unshift(`phase ${run.phase}: ${run.answered} of ${run.asked} answered, ${age(at - run.since)}`);
    }
    if (run.until) parts.unshift(`paused until ${new Date((run.until + skew) * 1000).toLocaleString()}`);
  }
  text($("more"), parts.join("; "));
  const devices = [...(live?.devices.values() ?? [])].sort((a, b) => a.name.localeCompare(b.name, "en", {numeric: true}));
  const more = Object.entries(FIGURES).filter(([, words]) => devices.some(words));
  fill($("devices"), ["name", "state", "reason", "heard", "domain", ...more.map(([head]) => head)], devices.map((row) =>
    [row.name, row.name, row.state, row.reason, heard(row, at), row.domain, ...more.map(([, words]) => words(row))]));
}

// Columns that the table has only if a device measures the figure, or if the run has a budget.
const FIGURES = {
  energy: ({joules}) => (joules === undefined ? "" : `${joules.toPrecision(3)} J`),
  temperature: ({celsius}) => (celsius === undefined ? "" : `${celsius.toFixed(1)} \u00b0C`),
  data: ({data = {}}) => Object.entries(data).map(([limit, [used, most]]) => `${bytes(used)} of ${bytes(most)} (${limit})`).join(", "),
};

// The times come every few seconds, so a device that was heard may have none yet.
function heard(row, at) {
  if (row.heard) return `${age(at - row.heard)} ago`;
  return row.state === "not here yet" ? "never" : "";
}

// The log follows its newest line until a person scrolls up.
$("log").addEventListener("scroll", ({target}) => { follows = target.scrollTop + target.clientHeight >= target.scrollHeight - 8; });

function drawLog() {
  const list = $("log");
  const first = now.log[0]?.line ?? 0, kept = [...list.children].filter((item) => now.log.some((row) => row.line === +item.dataset.line));
  if (kept.length !== list.children.length) list.replaceChildren(...kept);
  const last = +(list.lastChild?.dataset.line ?? first - 1);
  list.append(...now.log.filter((row) => row.line > last).map((row) => {
    const item = element("div", row.level), time = element("time", "", clock(row.time));
    item.dataset.line = row.line;
    item.append(time, row.run ? `${row.run}: ${row.text}` : row.text);
    return item;
  }));
  if (follows) list.scrollTop = list.scrollHeight;
  if (list.getAttribute("aria-live") === "off") setTimeout(() => list.setAttribute("aria-live", "polite"), 1000);
}

// The queue. Only the name is a link; each other text is only text.
function drawQueue() {
  const queue = now.queue;
  $("queue").hidden = !queue?.rows.length;
  if (!queue) return;
  fill($("runs"), ["run", "state", "round", "reason", "priority", "after"], queue.rows.map((row) => {
    const live = now.runs.get(row.run)?.run;
    const name = row.generation > 1 ? `${row.run} (generation ${row.generation})` : row.run;
    return [row.run, name, row.state, place(row, live), reason({row, live}), row.priority, row.after];
  }), (cell, words, i) => {
    if (i) text(cell, String(words)); else link(cell, words);
  });
  const more = [[queue.waiting, "waiting"], [queue.over, "ended"]].filter(([count]) => count);
  text($("not-shown"), more.map(([count, kind]) => `${count} more ${kind} ${count === 1 ? "run is" : "runs are"} not shown.`).join(" "));
}

// The row of the queue may have no reason only while its run is conducted. Then the run says what it does.
const reason = ({row, live}) => row?.reason || (!live || row && live.closed ? "" : [live.words, live.misfits].filter(Boolean).join("; "));

function place(row, live) {
  if (live) return `${Math.min(live.round, row.rounds)} of ${row.rounds}`;
  return row.begun ? `${row.rounds} planned` : `0 of ${row.rounds}`;
}

function link(cell, name) {
  const made = cell.firstElementChild ?? element("a");
  if (!made.parentNode) cell.append(made);
  text(made, name);
  made.href = `#run=${encodeURIComponent(name)}`;
  if (name === shown) made.setAttribute("aria-current", "true"); else made.removeAttribute("aria-current");
}

function draw() {
  if (!now.loaded) return;
  const {row, live} = select(), run = live?.run, state = row?.state ?? run?.state;
  drawQueue();
  drawLog();
  document.body.classList.remove("empty");
  document.body.classList.toggle("idle", !run);
  const rounds = [...(live?.rounds.values() ?? [])].sort((a, b) => a.round - b.round);
  document.title = state ? `${shown}: ${state}, protofleet` : "protofleet";
  text($("name"), shown || "protofleet");
  text($("state"), state ?? (shown ? "not shown" : "no run"));
  text($("words"), state ? reason({row, live: run}) : missing());
  if (run) {
    $("done").max = run.planned;
    $("done").value = rounds.filter((row) => row.kind === "training").length;
    drawAccuracy(rounds);
    drawBytes(rounds);
  }
  drawTimes();
  drawButtons();
}

// The queue shows only its newest runs, so a chosen run may have no row.
function missing() {
  if (shown) return `The page does not show this run. "protofleet show runs/${shown}" shows it, if there is one of this name.`;
  return 'The queue is empty. "protofleet submit FILE" adds a run.';
}

addEventListener("resize", schedule);
setInterval(() => { if (!document.hidden) drawTimes(); }, 1000);
