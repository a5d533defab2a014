"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const { methods, lines } = data.curves;
const get = (id) => document.getElementById(id);
const root = document.documentElement;
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";

// ---- small helpers

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const number = (value, digits = 4) => {
  if (value === null || value === undefined || !isFinite(value)) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(2);
  return size >= 10 ** digits ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
};

const known = (value) => typeof value === "number";
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const ink = () => {
  const style = getComputedStyle(root);
  return Object.fromEntries(["paper", "line", "ink", "quiet", "accent", "cold"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
};

// ---- colours: a method's own on white; lightened, or for small text darkened, until it can be read

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const hexOf = (rgb) => "#" + rgb.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("");
const mix = (a, b, share) => hexOf(channels(a).map((v, i) => v + (channels(b)[i] - v) * share));

function luminance(hex) {
  const [r, g, b] = channels(hex).map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

function readable(hex, paper, ratio) {
  const end = luminance(paper) > 0.5 ? "#000000" : "#ffffff";
  let share = 0;
  while (share < 1 && contrast(mix(hex, end, share), paper) < ratio) share += 0.04;
  return mix(hex, end, Math.min(share, 1));
}

const stroke = (hex) => (dark() ? readable(hex, ink().paper, 4) : hex);
const colourOf = Object.fromEntries(methods.map((m) => [m.label, m.colour]));

// ---- scales

function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = [f(low), f(high)];
  const place = (value) => from + ((f(value) - a) / (b - a || 1)) * (to - from);
  place.invert = (pixel) => {
    const v = a + ((pixel - from) / (to - from)) * (b - a);
    return log ? 10 ** v : v;
  };
  place.ticks = (count) => (log && high / low > 3 ? decades(low, high, count) : even(low, high, count));
  return place;
}

function even(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((s) => s * power >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function decades(low, high, count) {
  const span = Math.log10(high / low);
  const subs = span > count ? [1] : span > 2.2 ? [1, 3] : [1, 2, 5];
  const stride = Math.max(1, Math.ceil(span / count));
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
    if (e % stride === 0) for (const s of subs) if (s * 10 ** e >= low * 0.999 && s * 10 ** e <= high * 1.001) ticks.push(Number((s * 10 ** e).toPrecision(3)));
  }
  return ticks;
}

// ---- the chart's state

const axes = data.curves;
const state = { x: axes.x[0]?.key, y: axes.y[0]?.key, hidden: new Set(), log: {}, focus: null };
let drawn = null; // scales and points of the chart as it stands

const title = (way) => axes[way].find((axis) => axis.key === state[way]).title;

function defaultLog(key) {
  if (key === "train_loss") return true;
  if (key !== "uplink_bytes" && key !== "modelled_seconds") return false;
  const values = lines.flatMap((line) => Object.values(line.views).flatMap((view) => view[key] || [])).filter((v) => v > 0);
  return values.reduce((a, b) => Math.max(a, b), 0) / values.reduce((a, b) => Math.min(a, b), Infinity) > 10;
}

const isLog = (way) => (state.log[state[way]] ??= defaultLog(state[way]));

// Visible lines as points {x, y, low, high}; a logarithmic scale has no place for zero.
function shown() {
  const [logX, logY] = [isLog("x"), isLog("y")];
  const all = lines.filter((line) => !state.hidden.has(line.method) && line.views[state.y]?.[state.x]).map((line) => {
    const view = line.views[state.y];
    const points = view.mean.map((y, i) => ({ x: view[state.x][i], y, low: view.low[i], high: view.high[i] }));
    return { ...line, points: points.filter((p) => known(p.x) && known(p.y) && (!logX || p.x > 0) && (!logY || p.y > 0)) };
  }).filter((line) => line.points.length);
  return state.y === "train_loss" ? capped(all) : all;
}

// A run on its way to infinity stops above the others, lest it press them flat.
function capped(all) {
  const sound = all.filter((line) => line.status !== "diverged");
  const values = (sound.length ? sound.flatMap((line) => line.points) : all.map((line) => line.points[0])).map((p) => p.high);
  const top = 3 * values.reduce((a, b) => Math.max(a, b), 0);
  return all.map((line) => {
    if (line.status !== "diverged") return line;
    const end = line.points.findIndex((p) => p.y > top);
    const kept = end < 0 ? line.points : line.points.slice(0, end + 1).map((p) => ({ ...p, y: Math.min(p.y, top) }));
    return { ...line, points: kept };
  });
}

function extent(values, log) {
  const sound = values.filter((v) => !log || v > 0);
  let low = sound.reduce((a, b) => Math.min(a, b), Infinity);
  let high = sound.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!isFinite(low)) [low, high] = log ? [0.1, 1] : [0, 1];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  const pad = log ? (high / low) ** 0.03 : (high - low) * 0.03;
  return log ? [low / pad, high * pad] : [low - pad, high + pad];
}

// ---- drawing the chart

const pen = document.createElement("canvas").getContext("2d");
const wide = (text) => { pen.font = `13px ${FONT}`; return pen.measureText(text).width; };
const short = (text) => (text.length > 26 ? text.slice(0, 25) + "…" : text);

function draw() {
  const all = shown();
  const width = Math.max(300, get("plot").clientWidth);
  const height = Math.round(Math.min(460, Math.max(280, width * 0.52)));
  const named = [...new Map([...all].reverse().map((line) => [line.method, line])).values()];
  const labelled = width > 560 && named.length <= 16 && methods.length > 1;
  const right = labelled ? 26 + named.reduce((most, line) => Math.max(most, wide(short(line.method))), 0) : 14;
  const box = { left: 58, right: width - right, top: 14, bottom: height - 46 };
  const points = all.flatMap((line) => line.points);
  const xs = extent(points.map((p) => p.x), isLog("x"));
  const ys = extent(points.flatMap((p) => [p.low, p.high].map((v, i) => (isLog("y") && v <= 0 ? p.y : i ? Math.min(v, Math.max(p.y, v)) : v))).filter(known), isLog("y"));
  const top = state.y === "train_loss" ? Math.min(ys[1], roof(all) * 1.05) : ys[1];
  const x = scale(...xs, box.left, box.right, isLog("x"));
  const y = scale(ys[0], top, box.bottom, box.top, isLog("y"));
  const colours = ink();
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT, "font-size": 13, role: "img", "aria-label": `${title("y")} against ${title("x")}, ${named.length} methods` });
  svg.append(grid(x, y, box, colours));
  for (const line of all) svg.append(trace(line, x, y, box, colours));
  if (labelled) svg.append(names(named, x, y, box, colours));
  if (!all.length) svg.append(shape("text", { x: (box.left + box.right) / 2, y: height / 2, "text-anchor": "middle", fill: colours.quiet }, "Nothing to show here"));
  const cursor = shape("g", { class: "cursor" });
  svg.append(cursor);
  get("plot").replaceChildren(svg);
  drawn = { all, x, y, box, width, cursor, colours };
  if (get("chart-table").open) fillTable();
}

const roof = (all) => all.flatMap((line) => line.points.map((p) => (line.status === "diverged" ? p.y : p.high))).reduce((a, b) => Math.max(a, b), 0) || Infinity;

function grid(x, y, box, colours) {
  const layer = shape("g", {});
  const text = (at, content) => layer.append(shape("text", { fill: colours.quiet, ...at }, content));
  for (const tick of y.ticks(6)) {
    layer.append(shape("line", { x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), stroke: colours.line }));
    text({ x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, number(tick));
  }
  for (const tick of x.ticks(Math.max(3, Math.round((box.right - box.left) / 90)))) {
    if (state.x === "round" && tick % 1) continue;
    text({ x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, number(tick));
  }
  text({ x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle" }, title("x"));
  text({ transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, title("y"));
  return layer;
}

function trace(line, x, y, box, colours) {
  const colour = stroke(colourOf[line.method]);
  const layer = shape("g", { class: "line", "data-method": line.method, opacity: state.focus && state.focus !== line.method ? 0.15 : 1 });
  const floor = (v, p) => Math.min(box.bottom, Math.max(box.top, y(isLog("y") && v <= 0 ? p.y : v)));
  const join = (points, f) => points.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${f(p).toFixed(1)}`).join("");
  const done = line.status === "done";
  if (done && line.runs > 1) {
    const back = join([...line.points].reverse(), (p) => floor(p.low, p)).replace("M", "L");
    layer.append(shape("path", { d: join(line.points, (p) => floor(p.high, p)) + back + "Z", fill: colour, opacity: 0.14 }));
  }
  layer.append(shape("path", { d: join(line.points, (p) => floor(p.y, p)), fill: "none", stroke: colour, "stroke-width": done ? 2 : 1.25, "stroke-linejoin": "round", "stroke-linecap": "round" }));
  const last = line.points[line.points.length - 1];
  const [ex, ey] = [x(last.x), floor(last.y, last)];
  if (line.status === "diverged") layer.append(shape("path", { d: `M${ex - 4} ${ey - 4}l8 8m0 -8l-8 8`, stroke: colour, "stroke-width": 2 }));
  else layer.append(shape("circle", { cx: ex, cy: ey, r: 3, fill: done ? colour : colours.paper, stroke: colour, "stroke-width": 1.5 }));
  return layer;
}

// Names beside the plot, pushed apart, each on a dotted thread from the end of its line.
function names(named, x, y, box, colours) {
  const layer = shape("g", {});
  const ends = named.map((line) => {
    const p = line.points[line.points.length - 1];
    return { line, px: x(p.x), py: Math.min(box.bottom, Math.max(box.top, y(p.y))) };
  }).sort((a, b) => a.py - b.py);
  const gap = Math.min(17, (box.bottom - box.top) / ends.length);
  let place = -Infinity;
  for (const end of ends) end.at = place = Math.max(end.py, place + gap);
  let limit = box.bottom;
  for (const end of [...ends].reverse()) { end.at = Math.min(end.at, limit); limit = end.at - gap; }
  for (const { line, px, py, at } of ends) {
    const faded = state.focus && state.focus !== line.method ? 0.25 : 1;
    layer.append(shape("path", { d: `M${px + 5} ${py}L${box.right + 8} ${at}`, stroke: colours.quiet, "stroke-dasharray": "1 3", fill: "none", opacity: faded * 0.8 }));
    layer.append(shape("text", { x: box.right + 12, y: at + 4, fill: readable(colourOf[line.method], colours.paper, 4.5), opacity: faded }, short(line.method)));
  }
  return layer;
}

// ---- reading values

function near(line, pixel) {
  const { x } = drawn;
  return line.points.reduce((best, p) => (Math.abs(x(p.x) - pixel) < Math.abs(x(best.x) - pixel) ? p : best));
}

function readAt(pixel) {
  const { all, x, y, box, cursor, colours, width } = drawn;
  const reading = all.map((line) => ({ line, p: near(line, pixel) }))
    .filter(({ line, p }) => Math.abs(x(p.x) - pixel) < 24 || (x(line.points[0].x) <= pixel && pixel <= x(line.points[line.points.length - 1].x)))
    .sort((a, b) => b.p.y - a.p.y);
  if (!reading.length) return unread();
  const mark = shape("line", { x1: pixel, x2: pixel, y1: box.top, y2: box.bottom, stroke: colours.quiet, "stroke-dasharray": "2 3" });
  const dots = reading.map(({ line, p }) => shape("circle", { cx: x(p.x), cy: y(p.y), r: 4, fill: stroke(colourOf[line.method]), stroke: colours.paper, "stroke-width": 1.5 }));
  cursor.replaceChildren(mark, ...dots);
  const heading = `${title("x")}: ${number(state.x === "round" ? Math.round(x.invert(pixel)) : x.invert(pixel), 3)}`;
  const rows = reading.slice(0, 14).map(({ line, p }) => {
    const swatch = element("i", { class: "swatch", style: `--c:${stroke(colourOf[line.method])}` });
    const range = line.status === "done" && line.runs > 1 ? ` (${number(p.low, 3)}–${number(p.high, 3)})` : "";
    return element("div", {}, swatch, short(line.method) + ending(line), element("b", {}, number(p.y) + range));
  });
  if (reading.length > 14) rows.push(element("p", {}, `and ${reading.length - 14} more`));
  const tip = get("tip");
  tip.replaceChildren(element("p", {}, heading), ...rows);
  tip.hidden = false;
  const left = pixel + 16 + tip.offsetWidth > width ? pixel - 16 - tip.offsetWidth : pixel + 16;
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${box.top}px`;
  drawn.spoken = `${heading}; ` + reading.map(({ line, p }) => `${line.method}${ending(line)} ${number(p.y, 3)}`).join(", ");
}

const ending = (line) => (line.status === "done" ? "" : ` (seed ${line.seed}, ${line.status})`);

function unread() {
  get("tip").hidden = true;
  drawn?.cursor.replaceChildren();
}

function watch() {
  const plot = get("plot");
  const at = (event) => event.clientX - plot.getBoundingClientRect().left;
  plot.addEventListener("pointermove", (event) => {
    const { box } = drawn;
    if (at(event) < box.left - 8 || at(event) > box.right + 8) unread();
    else readAt(Math.min(box.right, Math.max(box.left, at(event))));
  });
  plot.addEventListener("pointerleave", unread);
  get("chart").addEventListener("blur", unread);
  let pixel = null;
  get("chart").addEventListener("keydown", (event) => {
    const { box } = drawn;
    const step = (box.right - box.left) / (event.shiftKey ? 10 : 50);
    const moves = { ArrowLeft: (pixel ?? box.right) - step, ArrowRight: (pixel ?? box.left) + step, Home: box.left, End: box.right };
    if (event.key === "Escape") return unread();
    if (!(event.key in moves)) return;
    event.preventDefault();
    pixel = Math.min(box.right, Math.max(box.left, moves[event.key]));
    drawn.spoken = "";
    readAt(pixel);
    get("readout").textContent = drawn.spoken || "no values here";
  });
}

// ---- controls

function radios(way) {
  for (const axis of axes[way]) {
    const input = element("input", { type: "radio", name: `pick-${way}`, value: axis.key });
    input.checked = axis.key === state[way];
    input.addEventListener("change", () => { state[way] = axis.key; refresh(); });
    get(`pick-${way}`).append(element("label", {}, input, element("span", {}, axis.name)));
  }
  get(`log-${way}`).addEventListener("change", (event) => { state.log[state[way]] = event.target.checked; refresh(); });
}

function legend() {
  const buttons = methods.map(({ label, colour }) => {
    const button = element("button", { type: "button", "aria-pressed": "true" }, element("i", { class: "swatch", "data-c": colour, style: `--c:${colour}` }), label);
    const focus = (method) => () => { state.focus = method; fade(); };
    button.addEventListener("click", () => { state.hidden.delete(label) || state.hidden.add(label); refresh(); });
    for (const [event, method] of [["pointerenter", label], ["focus", label], ["pointerleave", null], ["blur", null]]) button.addEventListener(event, focus(method));
    button.dataset.label = label;
    return button;
  });
  const all = (name, hidden) => {
    const button = element("button", { type: "button" }, name);
    button.addEventListener("click", () => { state.hidden = new Set(hidden); refresh(); });
    return button;
  };
  get("legend").replaceChildren(...buttons, ...(methods.length > 4 ? [all("Show all", []), all("Hide all", methods.map((m) => m.label))] : []));
}

function fade() {
  if (state.focus && state.hidden.has(state.focus)) state.focus = null;
  for (const line of get("plot").querySelectorAll(".line")) line.setAttribute("opacity", state.focus && state.focus !== line.dataset.method ? 0.15 : 1);
}

function refresh() {
  for (const way of ["x", "y"]) get(`log-${way}`).checked = isLog(way);
  for (const button of get("legend").querySelectorAll("[data-label]")) button.setAttribute("aria-pressed", String(!state.hidden.has(button.dataset.label)));
  if (state.hidden.has(state.focus)) state.focus = null;
  unread();
  draw();
}

// ---- the chart as a table and as files

function listing(most) {
  const rows = [["method", "status", "seed", "runs", title("x"), title("y"), "lowest", "highest"]];
  for (const line of drawn.all) {
    const step = Math.max(1, Math.ceil(line.points.length / most));
    line.points.forEach((p, i) => {
      if (i % step === 0 || i === line.points.length - 1) rows.push([line.method, line.status, line.seed ?? "", line.runs, p.x, p.y, p.low, p.high]);
    });
  }
  return rows;
}

function table(caption, [head, ...rows]) {
  const cells = (row, tag) => element("tr", {}, ...row.map((value, i) => {
    const attributes = known(value) || (tag === "th" && known(rows[0]?.[i])) ? { class: "number" } : {};
    return element(i && tag === "td" ? "td" : "th", { ...attributes, scope: tag === "th" ? "col" : "row" }, known(value) ? number(value, 5) : value);
  }));
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, cells(head, "th")), element("tbody", {}, ...rows.map((row) => cells(row, "td"))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

function fillTable() {
  const note = element("p", { class: "quiet" }, "At most twenty values a line; the CSV file has all that are drawn.");
  get("chart-table").lastElementChild.replaceChildren(note, table("Values of the shown curves", listing(20)));
}

function save(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const fileName = (kind) => `${state.y}-by-${state.x}.${kind}`;

function asSvg() {
  unread();
  const copy = get("plot").firstElementChild.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(shape("rect", { width: "100%", height: "100%", fill: ink().paper }));
  return new XMLSerializer().serializeToString(copy);
}

function savePng() {
  const image = new Image();
  image.onload = () => {
    const canvas = element("canvas", { width: image.width * 2, height: image.height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(fileName("png"), blob), "image/png");
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(asSvg());
}

function asCsv() {
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  return listing(Infinity).map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

function exports() {
  get("save-png").addEventListener("click", savePng);
  get("save-svg").addEventListener("click", () => save(fileName("svg"), new Blob([asSvg()], { type: "image/svg+xml" })));
  get("save-csv").addEventListener("click", () => save(fileName("csv"), new Blob([asCsv()], { type: "text/csv" })));
  get("chart-table").addEventListener("toggle", () => get("chart-table").open && fillTable());
}

// ---- clients: how their labels and their gradients differ

// A map of cells: rows and columns have names, `paint` a cell's colour, `say` what it means.
function heat(heading, note, rows, columns, names, paint, say) {
  const cell = Math.min(24, 460 / columns.length);
  const tall = rows.length > 30 ? cell : Math.max(cell, 14);
  const [left, top, colours] = [46, 6, ink()];
  const [width, height] = [left + cell * columns.length + 2, top + tall * rows.length + 38];
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, style: `max-width:${Math.round(width * 1.15)}px`, "font-family": FONT, "font-size": 11, fill: colours.quiet, role: "img", "aria-label": heading });
  rows.forEach((row, i) => columns.forEach((column, j) => {
    const made = shape("rect", { x: left + j * cell, y: top + i * tall, width: Math.max(0.5, cell - Math.min(1, cell / 8)), height: tall - Math.min(1, tall / 8), fill: paint(i, j, colours) });
    made.say = say(i, j);
    svg.append(made);
  }));
  const every = (count, size) => Math.ceil(20 / size) * Math.max(1, Math.ceil(count / 400));
  rows.forEach((row, i) => i % Math.ceil(13 / tall) === 0 && svg.append(shape("text", { x: left - 6, y: top + (i + 0.5) * tall + 4, "text-anchor": "end" }, String(row))));
  columns.forEach((column, j) => j % every(columns.length, cell) === 0 && svg.append(shape("text", { x: left + (j + 0.5) * cell, y: top + rows.length * tall + 13, "text-anchor": "middle" }, String(column))));
  svg.append(shape("text", { x: left + (columns.length * cell) / 2, y: height - 6, "text-anchor": "middle" }, names[1]));
  svg.append(shape("text", { transform: `translate(9 ${top + (rows.length * tall) / 2}) rotate(-90)`, "text-anchor": "middle" }, names[0]));
  const words = element("p", { class: "quiet" }, note);
  svg.addEventListener("pointermove", (event) => { words.textContent = event.target.say || note; });
  svg.addEventListener("pointerleave", () => { words.textContent = note; });
  return element("figure", { class: "heat" }, element("h3", {}, heading), words, svg);
}

function labelMap({ counts, shown, clients }) {
  const classes = counts[0].map((_, c) => c);
  const most = counts.flat().reduce((a, b) => Math.max(a, b), 1);
  const some = counts.length < clients ? `the first ${counts.length} of ${clients} clients; ` : "";
  const figure = heat("Samples by class", `${some}the darkest cell has ${most} samples`, classes, shown, ["class", "client"],
    (c, i, colours) => mix(mix(colours.paper, colours.quiet, 0.1), colours.accent, (counts[i][c] / most) ** 0.7),
    (c, i) => `client ${shown[i]}, class ${c}: ${counts[i][c]} samples`);
  return [figure, fold("Samples by class, as a table", () => table("Samples by class", [["client", ...classes.map((c) => `class ${c}`)], ...counts.map((row, i) => [String(shown[i]), ...row])]))];
}

function likeness({ similarity: { clients, cosine } }) {
  const apart = cosine.flatMap((row, i) => row.filter((_, j) => i !== j)).filter(known);
  const mean = apart.reduce((a, b) => a + b, 0) / apart.length;
  const note = apart.length ? `cosine between clients' gradients at the start; ${mean.toFixed(2)} on average` : "one client";
  const figure = heat("Likeness of gradients", note, clients, clients, ["client", "client"],
    (i, j, colours) => mix(mix(colours.paper, colours.quiet, 0.1), cosine[i][j] < 0 ? colours.cold : colours.accent, Math.abs(cosine[i][j] ?? 0)),
    (i, j) => `clients ${clients[i]} and ${clients[j]}: cosine ${known(cosine[i][j]) ? cosine[i][j].toFixed(2) : "—"}`);
  return [figure, fold("Likeness, as a table", () => table("Cosines", [["client", ...clients.map(String)], ...cosine.map((row, i) => [String(clients[i]), ...row.map((c) => (known(c) ? c.toFixed(2) : "—"))])]))];
}

function fold(name, fill) {
  const made = element("details", {}, element("summary", {}, name));
  made.addEventListener("toggle", () => made.open && made.children.length < 2 && made.append(fill()));
  return made;
}

let dealt = 0;
function drawClients() {
  const [place, partitions] = [get("clients-ui"), data.partitions];
  if (!partitions.length) return;
  const pick = element("select", { id: "pick-deal" }, ...partitions.map((p, i) => element("option", { value: i }, p.name)));
  pick.value = dealt;
  pick.addEventListener("change", () => { dealt = Number(pick.value); drawClients(); get("pick-deal").focus(); });
  const chosen = partitions[dealt];
  const parts = [chosen.counts && labelMap(chosen), chosen.similarity && likeness(chosen)].filter(Boolean);
  const head = partitions.length > 1 ? [element("label", { for: "pick-deal" }, "Data of "), pick] : [];
  place.replaceChildren(...head, element("div", { class: "heats" }, ...parts.map(([figure, table]) => element("div", {}, figure, table))));
}

// ---- theme

function theme() {
  const button = get("theme");
  const apply = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} theme`);
    for (const thing of document.querySelectorAll("[data-c]")) thing.style.setProperty("--c", stroke(thing.dataset.c));
    if (state.x && state.y) draw();
    drawClients();
  };
  try { if (localStorage.fedcomTheme) root.dataset.theme = localStorage.fedcomTheme; } catch { /* a page from a file may have no storage */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.fedcomTheme = root.dataset.theme; } catch { /* then it lasts as long as the page */ }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

if (state.x && state.y) {
  get("chart-ui").hidden = false;
  ["y", "x"].forEach(radios);
  legend();
  exports();
  refresh();
  watch();
  new ResizeObserver(() => { unread(); draw(); }).observe(get("plot"));
}
theme();
})();
