// The chart: curves with bands, their names, reading values, controls and files.

const state = { hidden: new Set(remembered("hide")), log: {}, focus: null, zoom: null, smooth: remembered("lines")[0] === "smoothed" };
let drawn = null; // the chart as it stands: lines, scales, box, colours

const lines = () => data.curves.lines;
const methods = () => data.curves.methods;
const title = (way) => data.curves[way].find((axis) => axis.key === state[way]).title;
const short = (text) => (text.length > 26 ? text.slice(0, 25) + "…" : text);
const dim = (method) => (state.focus && state.focus !== method ? 0.15 : 1);
const last = (line) => line.points[line.points.length - 1];

function recall() {
  for (const way of ["x", "y"]) {
    const keys = data.curves[way].map((axis) => axis.key);
    state[way] = [state[way], ...remembered(way), keys[0]].find((key) => keys.includes(key));
  }
  for (const word of remembered("scale")) {
    const [key, kind] = word.split(":");
    state.log[key] ??= kind === "log";
  }
  const zoom = (remembered("zoom")[0] ?? "").split(",").map(Number);
  if (zoom.length === 4 && zoom.every(Number.isFinite)) state.zoom = { x: zoom.slice(0, 2), y: zoom.slice(2) };
}

function store() {
  for (const way of ["x", "y"]) remember(way, state[way] === data.curves[way][0].key ? [] : [state[way]]);
  const scales = Object.entries(state.log).filter(([key, log]) => log !== defaultLog(key));
  remember("scale", scales.map(([key, log]) => `${key}:${log ? "log" : "even"}`));
  remember("hide", [...state.hidden]);
  remember("lines", state.smooth ? ["smoothed"] : []);
  const written = (v) => Number(v.toPrecision(6));
  remember("zoom", state.zoom ? [[...state.zoom.x, ...state.zoom.y].map(written).join(",")] : []);
}

// ---- scales

function scale([low, high], from, to, log) {
  const f = log ? Math.log10 : (v) => v;
  const [a, b] = [f(low), f(high)];
  const place = (value) => from + ((f(value) - a) / (b - a || 1)) * (to - from);
  place.invert = (pixel) => {
    const v = a + ((pixel - from) / (to - from)) * (b - a);
    return log ? 10 ** v : v;
  };
  const kind = log === "octaves" ? octaves : log && high / low > 3 ? decades : even;
  place.ticks = (count) => kind(low, high, count);
  return place;
}

function even(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((s) => s * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const steps = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: Math.max(0, steps) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// Every decade, at any width; between them 2 and 5, or 3, where there is room.
function decades(low, high, count) {
  const [first, end] = [Math.floor(Math.log10(low)), Math.log10(high)];
  const whole = Math.floor(end) - Math.ceil(Math.log10(low)) + 1;
  const stride = Math.max(1, Math.ceil(whole / (2 * count))); // beyond that, numbers would run together
  const tried = (stride > 1 ? [[1]] : [[1, 2, 5], [1, 3], [1]]).map((subs) => {
    const ticks = [];
    for (let e = first - (((first % stride) + stride) % stride); e <= end; e += stride) ticks.push(...subs.map((s) => s * 10 ** e));
    return ticks.filter((tick) => tick >= low && tick <= high).map((tick) => Number(tick.toPrecision(3)));
  });
  return tried.find((ticks) => ticks.length <= count) ?? tried[tried.length - 1];
}

// Powers of two, for bits; decades where none is in sight.
function octaves(low, high, count) {
  const [first, last] = [Math.ceil(Math.log2(low) - 1e-9), Math.floor(Math.log2(high) + 1e-9)];
  const stride = Math.max(1, Math.ceil((last - first + 1) / (2 * count)));
  const ticks = Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i).filter((e) => e % stride === 0);
  return ticks.length ? ticks.map((e) => 2 ** e) : decades(low, high, count);
}

function extent(values, log) {
  const sound = values.filter((v) => !log || v > 0);
  let [low, high] = [least(sound, Infinity), largest(sound, -Infinity)];
  if (!sound.length) [low, high] = [0.1, 1];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  const pad = log ? (high / low) ** 0.03 : (high - low) * 0.03;
  return log ? [low / pad, high * pad] : [low - pad, high + pad];
}

const spread = (values) => largest(values, 0) / least(values, Infinity);

function defaultLog(key) {
  if (!["uplink_bytes", "total_bytes", "modelled_seconds"].includes(key)) return key === "train_loss";
  const views = lines().flatMap((line) => Object.values(line.views));
  return spread(views.flatMap((view) => view[key] || []).filter((v) => v > 0)) > 10;
}

const isLog = (way) => state.log[state[way]] ?? defaultLog(state[way]);

// ---- what is drawn

// Visible lines as points; a logarithmic scale cannot show zero.
function shown() {
  const [logX, logY] = [isLog("x"), isLog("y")];
  const drawable = (p) => known(p.x) && known(p.y) && (!logX || p.x > 0) && (!logY || p.y > 0);
  const all = lines().filter((line) => !state.hidden.has(line.method) && line.views[state.y]?.[state.x]);
  const pointed = all.map((line) => {
    const { [state.x]: x, mean, low, high } = line.views[state.y];
    const points = mean.map((y, i) => ({ x: x[i], y, low: logY && low[i] <= 0 ? y : low[i], high: high[i] }));
    return { ...line, points: smoothed(points.filter(drawable)) };
  }).filter((line) => line.points.length);
  return state.y === "train_loss" ? capped(pointed) : pointed;
}

// Each value as the mean of those around it, a tenth of the line in all; its ends have fewer.
function smoothed(points) {
  if (!state.smooth) return points;
  const reach = Math.max(1, Math.round(points.length / 20));
  const mean = (i, key) => {
    const near = Math.min(reach, i, points.length - 1 - i);
    const own = points.slice(i - near, i + near + 1);
    return own.reduce((sum, p) => sum + p[key], 0) / own.length;
  };
  return points.map((p, i) => ({ x: p.x, y: mean(i, "y"), low: mean(i, "low"), high: mean(i, "high") }));
}

// A diverging run is cut off above the others, so that the scale suits the others.
function capped(all) {
  const sound = all.filter((line) => line.status !== "diverged");
  const points = sound.length ? sound.flatMap((line) => line.points) : all.map((line) => line.points[0]);
  const top = 3 * largest(points.map((p) => p.high), 0);
  return all.map((line) => {
    const end = line.status === "diverged" ? line.points.findIndex((p) => p.y > top) : -1;
    if (end < 0) return line;
    const cut = { x: line.points[end].x, y: top, low: top, high: top };
    return { ...line, points: [...line.points.slice(0, end), cut] };
  });
}

const pen = document.createElement("canvas").getContext("2d");
function wide(text, size = 13) {
  pen.font = `${size}px ${FONT}`;
  return pen.measureText(text).width;
}

function draw() {
  const all = shown();
  const width = Math.max(300, get("plot").clientWidth);
  const named = [...new Map([...all].reverse().map((line) => [line.method, line])).values()].reverse();
  const labelled = width > 560 && named.length <= 24 && methods().length > 1;
  const side = 30 + largest(named.map((line) => wide(short(line.method))), 0);
  layOut(all, width, labelled ? 28 : 16, labelled ? 34 : 14);
  let words = labelled ? atEnds(named) : [];
  if (!words) {
    layOut(all, width, side, 14);
    words = names(named);
  }
  const { box } = drawn;
  const clip = shape("clipPath", { id: "box" },
    shape("rect", { x: box.left - 5, y: box.top - 5, width: box.right - box.left + 10, height: box.bottom - box.top + 10 }));
  const svg = shape("svg", {
    viewBox: `0 0 ${width} ${box.height}`, width, height: box.height, "font-family": FONT, "font-size": 13, role: "img",
    "aria-label": `${title("y")} against ${title("x")}, ${named.length} ${group(named.length)}`,
  }, shape("defs", {}, clip), grid(),
  shape("g", { "clip-path": "url(#box)" }, ...all.map(trace)), ...words, drawn.cursor);
  get("plot").replaceChildren(svg);
  get("zoom-reset").disabled = !state.zoom;
  if (get("chart-table").open) fillTable();
}

// What lines are called: methods, or runs if some have the method's name and more.
const group = (count) => `${data.curves.what ?? "method"}${count === 1 ? "" : "s"}`;

// The scales and the box of the plot, with room to the right and above.
function layOut(all, width, right, top) {
  const height = Math.round(Math.min(460, Math.max(280, width * 0.5)));
  const box = { right: width - right, top, bottom: height - 46, width, height };
  const points = all.flatMap((line) => line.points);
  const [xs, ys] = [points.map((p) => p.x), points.flatMap((p) => [p.low, p.high])];
  const whole = { x: extent(xs, isLog("x")), y: extent(ys, isLog("y")) };
  const y = scale((state.zoom ?? whole).y, box.bottom, box.top, isLog("y"));
  box.left = leftOf(y);
  const x = scale((state.zoom ?? whole).x, box.left, box.right, isLog("x"));
  const inside = (pixel) => Math.min(box.right, Math.max(box.left, pixel));
  const span = [inside(least(points.map((p) => x(p.x)), box.right)), inside(largest(points.map((p) => x(p.x)), box.left))];
  drawn = { all, x, y, whole, box, span, colours: inks(), cursor: shape("g") };
}

function grid() {
  const { all, box, colours } = drawn;
  const layer = axes({ ...drawn, xTitle: title("x"), yTitle: title("y"), whole: state.x === "round" });
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  if (!all.length) layer.append(shape("text", { x, y, fill: colours.quiet }, "Nothing is shown"));
  return layer;
}

// Where a plot begins, so that the numbers of its ticks stand clear of its title.
const leftOf = (y) => Math.max(60, 30 + 7.5 * largest(y.ticks(6).map((tick) => number(tick).length), 0));

// The grid, ticks and titles of a plot.
function axes({ x, y, box, colours, xTitle, yTitle, whole }) {
  const layer = shape("g", { fill: colours.quiet, "text-anchor": "middle" });
  const [middle, centre] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  for (const tick of y.ticks(6)) {
    const at = y(tick);
    layer.append(shape("line", { x1: box.left, x2: box.right, y1: at, y2: at, stroke: colours.line }));
    layer.append(shape("text", { x: box.left - 8, y: at + 4, "text-anchor": "end" }, number(tick)));
  }
  const ticks = x.ticks(Math.max(3, Math.round((box.right - box.left) / 90)));
  for (const tick of ticks.filter((tick) => !whole || tick % 1 === 0)) {
    layer.append(shape("text", { x: x(tick), y: box.bottom + 18 }, number(tick)));
  }
  layer.append(shape("text", { x: middle, y: box.bottom + 38 }, xTitle));
  layer.append(shape("text", { transform: `translate(13 ${centre}) rotate(-90)` }, yTitle));
  return layer;
}

function trace(line, index) {
  const { x, y, colours } = drawn;
  const { colour, dash, marker: kind } = look(line.method);
  const ink = stroke(colour);
  const layer = shape("g", { class: "line", "data-method": line.method, opacity: dim(line.method) });
  const path = (points, key) => points.map((p) => `${x(p.x).toFixed(1)} ${y(p[key]).toFixed(1)}`).join("L");
  const done = line.status === "done";
  if (done && line.runs > 1) {
    const band = `M${path(line.points, "high")}L${path([...line.points].reverse(), "low")}Z`;
    layer.append(shape("path", { d: band, fill: ink, opacity: 0.14 }));
  }
  layer.append(shape("path", {
    d: "M" + path(line.points, "y"), fill: "none", stroke: ink, "stroke-width": done ? 2 : 1.25,
    "stroke-linejoin": "round", "stroke-dasharray": dash.join(" "), class: "curve",
  }));
  if (kind !== "circle") layer.append(...spaced(line.points, index).map((p) => marker(kind, x(p.x), y(p.y), 3.5, { fill: ink })));
  const [cx, cy] = [x(last(line).x), y(last(line).y)];
  const cross = { d: `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8`, stroke: ink, "stroke-width": 2 };
  const end = { fill: done ? ink : colours.paper, stroke: ink, "stroke-width": 1.5 };
  layer.append(line.status === "diverged" ? shape("path", cross) : marker(kind, cx, cy, 3.5, end));
  return layer;
}

// Points of a line about 110 pixels apart, for markers; each line begins elsewhere.
function spaced(points, index) {
  const { x, box } = drawn;
  let next = box.left + 20 + 23 * (index % 5);
  return points.filter((p) => {
    const take = x(p.x) >= next;
    if (take) next = x(p.x) + 110;
    return take;
  });
}

// Where lines end within the plot, in pixels.
function tips(named) {
  const { x, y, box } = drawn;
  const within = (p) => x(p.x) >= box.left - 1 && x(p.x) <= box.right + 1 && y(p.y) >= box.top - 1 && y(p.y) <= box.bottom + 1;
  return named.map((line) => ({ method: line.method, p: line.points.findLast(within) })).filter(({ p }) => p)
    .map(({ method, p }) => ({ method, px: x(p.x), py: y(p.y) }));
}

const HALO = { "stroke-width": 3, "paint-order": "stroke", "stroke-linejoin": "round" };

// Each name at the end of its line, if the ends lie apart; null where they do not, or there is no room for all.
function atEnds(named) {
  const { all, x, y, box, colours } = drawn;
  const ends = tips(named);
  const apart = largest(ends.map(({ px }) => px), -Infinity) - least(ends.map(({ px }) => px), Infinity);
  if (ends.length > 12 || !(apart > 0.2 * (box.right - box.left))) return null;
  const ink = all.flatMap(({ points }) => points.slice(1).flatMap((p, i) => {
    const [x0, y0, x1, y1] = [x(points[i].x), y(points[i].y), x(p.x), y(p.y)];
    const steps = Math.max(1, Math.ceil(Math.hypot(x1 - x0, y1 - y0) / 8));
    return Array.from({ length: steps }, (_, k) => [x0 + ((x1 - x0) * k) / steps, y0 + ((y1 - y0) * k) / steps]);
  }));
  const taken = ends.map(({ px, py }) => [px - 6, py - 6, px + 6, py + 6]);
  const made = [];
  for (const { method, px, py } of ends) {
    const [w, words] = [wide(short(method)), short(method)];
    let best = null;
    for (const away of [9, 15, 22, 30, 40]) {
      for (const [across, down] of [[0, -1], [-1, -1], [1, -1], [1, 0], [0, 1], [1, 1], [-1, 1]]) {
        const middle = px + across * (away / 2 + w / 2) * (down ? 0.8 : 1.15);
        const spot = [middle - w / 2 - 2, py + down * (away + 2) - 8, middle + w / 2 + 2, py + down * (away + 2) + 8];
        const [a, b, c, d] = spot;
        if (a < box.left || c > box.width || b < 0 || d > box.bottom) continue;
        if (taken.some(([e, f, g, h]) => a < g && c > e && b < h && d > f)) continue;
        const cost = ink.filter(([u, v]) => u > a && u < c && v > b && v < d).length + away / 8;
        if (!best || cost < best.cost) best = { cost, spot, middle };
      }
    }
    if (!best) return null;
    taken.push(best.spot);
    made.push(shape("g", { class: "line", "data-method": method, opacity: dim(method) }, shape("text", {
      x: best.middle, y: best.spot[1] + 12.5, "text-anchor": "middle", class: "end",
      fill: readable(look(method).colour, colours.paper, 4.5), stroke: colours.paper, ...HALO,
    }, words)));
  }
  return made;
}

// Names beside the plot, pushed apart, each joined to the end of its line by a dotted line.
function names(named) {
  const { box, colours } = drawn;
  const ends = tips(named);
  ends.sort((a, b) => a.py - b.py);
  const gap = Math.min(17, (box.bottom - box.top) / ends.length);
  let edge = -Infinity;
  for (const end of ends) end.at = edge = Math.max(end.py, edge + gap);
  edge = box.bottom;
  for (const end of [...ends].reverse()) {
    end.at = Math.min(end.at, edge);
    edge = end.at - gap;
  }
  return ends.map(({ method, px, py, at }) => shape("g", { class: "line", "data-method": method, opacity: dim(method) },
    shape("path", { d: `M${px + 6} ${py}L${box.right + 12} ${at}`, stroke: colours.quiet, "stroke-dasharray": "1 3" }),
    shape("text", {
      x: box.right + 16, y: at + 4, fill: readable(look(method).colour, colours.paper, 4.5), stroke: colours.paper, ...HALO,
    }, short(method))));
}

// ---- reading values: each line tells its own point nearest to the pointer, below the plot

const ending = (line) => (line.status === "done" ? "" : ` (seed ${line.seed}, ${line.status})`);
const range = (line, p) => (line.status === "done" && line.runs > 1 ? ` (${number(p.low, 3)}–${number(p.high, 3)})` : "");

// A value of an axis with its unit, which its title has in brackets.
function measured(way, value, digits) {
  const unit = title(way).match(/\(([^()]+)\)$/)?.[1] ?? "";
  const named = way === "x" && state.x === "round" ? "round " : "";
  return `${named}${number(value, digits)}${unit === "%" ? "%" : unit && ` ${unit}`}`;
}

// The point of each line at a place; a line that ended before it keeps its last point.
function reading(pixel) {
  const { all, x } = drawn;
  const away = (p) => Math.abs(x(p.x) - pixel);
  return all.filter((line) => x(line.points[0].x) - 12 <= pixel).map((line) => ({
    line,
    p: line.points.reduce((best, p) => (away(p) < away(best) ? p : best)),
    held: pixel > x(last(line).x) + 12,
  }));
}

function readAt(pixel, height = null) {
  const { x, y, box, cursor, colours } = drawn;
  const found = reading(pixel);
  if (!found.length) return unread();
  const dots = found.map(({ line, p, held }) => marker(look(line.method).marker, x(p.x), y(p.y), 4.5, {
    fill: held ? colours.paper : stroke(look(line.method).colour), "stroke-width": 1.5,
    stroke: held ? stroke(look(line.method).colour) : colours.paper,
  }));
  cursor.replaceChildren(shape("line", {
    x1: pixel, x2: pixel, y1: box.top, y2: box.bottom, stroke: colours.quiet, "stroke-dasharray": "2 3",
  }), ...dots);
  const value = x.invert(pixel);
  const heading = `at ${measured("x", state.x === "round" ? Math.round(value) : value, 3)}`;
  const words = ({ line, p, held }) =>
    `${line.method}${ending(line)} ${measured("y", p.y, 4)}${range(line, p)} at ${measured("x", p.x, 3)}${held ? ", its last" : ""}`;
  const off = ({ p }) => Math.hypot(x(p.x) - pixel, y(p.y) - height);
  const near = height === null ? null : found.reduce((best, one) => (off(one) < off(best) ? one : best));
  get("near").textContent = near ? `Nearest: ${words(near)}` : heading;
  for (const button of get("legend").querySelectorAll("[data-label]")) {
    const own = found.filter(({ line }) => line.method === button.dataset.label);
    button.classList.toggle("near", near?.line.method === button.dataset.label);
    button.querySelector(".value").replaceChildren(...own.map(({ line, p, held }) => element("span", { class: held ? "held" : "" },
      element("b", {}, measured("y", p.y, 4)), `${range(line, p)} at ${measured("x", p.x, 3)}${ending(line)}`)));
  }
  return `${heading}; ${found.map(words).join("; ")}`;
}

function unread() {
  get("near").textContent = get("near").dataset.hint;
  for (const value of get("legend").querySelectorAll(".value")) value.replaceChildren();
  for (const button of get("legend").querySelectorAll(".near")) button.classList.remove("near");
  drawn?.cursor.replaceChildren();
}

function watch() {
  const within = (pixel) => Math.min(drawn.span[1], Math.max(drawn.span[0], pixel));
  const read = (event) => {
    const { left, top } = get("plot").getBoundingClientRect();
    if (!zooming()) readAt(within(event.clientX - left), event.clientY - top);
  };
  get("plot").addEventListener("pointermove", read);
  get("plot").addEventListener("pointerdown", read);
  get("plot").addEventListener("pointerleave", (event) => event.pointerType === "mouse" && unread());
  get("chart").addEventListener("blur", unread);
  let at = null;
  get("chart").addEventListener("keydown", (event) => {
    const [left, right] = drawn.span;
    const step = (right - left) / (event.shiftKey ? 10 : 50);
    const moves = { ArrowLeft: (at ?? right) - step, ArrowRight: (at ?? left) + step, Home: left, End: right };
    if (event.key === "Escape") unread();
    if (!(event.key in moves)) return;
    event.preventDefault();
    at = within(moves[event.key]);
    get("readout").textContent = readAt(at) || "no values here";
  });
}

// ---- controls

function radios(way) {
  const place = get(`pick-${way}`);
  const options = data.curves[way].map((axis) => [axis.key, axis.name]);
  place.replaceChildren();
  choices(place, `pick-${way}`, way === "y" ? "Measure" : "Against", options, state[way], (key) => {
    state[way] = key;
    state.zoom = null;
    refresh();
  });
}

function scales() {
  for (const way of ["x", "y"]) {
    get(`log-${way}`).addEventListener("change", (event) => {
      state.log[state[way]] = event.target.checked;
      state.zoom = null;
      refresh();
    });
  }
}

function smoothing() {
  get("smooth").addEventListener("change", (event) => {
    state.smooth = event.target.checked;
    refresh();
  });
}

function legend() {
  const press = (content, label, action) => {
    const button = element("button", { type: "button" }, ...content);
    button.addEventListener("click", () => {
      action();
      refresh();
    });
    if (label) button.dataset.label = label;
    return button;
  };
  const focus = (method) => () => {
    state.focus = state.hidden.has(method) ? null : method;
    for (const line of get("plot").querySelectorAll(".line")) line.setAttribute("opacity", dim(line.dataset.method));
  };
  const buttons = methods().map((method) => {
    const { label } = method;
    const content = [swatch(method), element("span", { class: "who" }, label), element("span", { class: "value" })];
    const button = press(content, label, () => state.hidden.delete(label) || state.hidden.add(label));
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, focus(label));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, focus(null));
    return button;
  });
  const everyone = methods().map((method) => method.label);
  const all = [["Show all", []], ["Hide all", everyone]].map(([name, hidden]) =>
    press([name], null, () => { state.hidden = new Set(hidden); }));
  get("legend").replaceChildren(...buttons);
  get("legend-all").replaceChildren(...(methods().length > 4 ? all : []));
}

function refresh() {
  if (drawable()) refreshChart();
  drawPoints();
  drawClients();
}

function refreshChart() {
  for (const way of ["x", "y"]) get(`log-${way}`).checked = isLog(way);
  get("smooth").checked = state.smooth;
  for (const button of get("legend").querySelectorAll("[data-label]")) {
    button.setAttribute("aria-pressed", String(!state.hidden.has(button.dataset.label)));
  }
  if (state.hidden.has(state.focus)) state.focus = null;
  unread();
  draw();
  store();
}

// ---- the chart as a table and as files

function listing(most) {
  const head = ["method", "status", "seed", "runs", title("x"), title("y"), "lowest", "highest"];
  const rows = drawn.all.flatMap((line) => {
    const every = Math.max(1, Math.ceil(line.points.length / most));
    const kept = line.points.filter((p, i) => i % every === 0 || p === last(line));
    return kept.map((p) => [line.method, line.status, String(line.seed ?? "all"), line.runs, p.x, p.y, p.low, p.high]);
  });
  return [head, ...rows];
}

function fillTable() {
  const note = element("p", { class: "quiet" }, "About twenty values per line; the CSV file has all that are drawn.");
  get("chart-table").lastElementChild.replaceChildren(note, table("Values of the shown curves", listing(20)));
}

function save(kind, content) {
  const link = element("a", { href: URL.createObjectURL(content), download: `${state.y}-by-${state.x}.${kind}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function asSvg() {
  unread();
  const copy = get("plot").firstElementChild.cloneNode(true);
  copy.prepend(shape("rect", { width: "100%", height: "100%", fill: inks().paper }));
  return new XMLSerializer().serializeToString(copy);
}

function savePng() {
  const image = new Image();
  image.onload = () => {
    const canvas = element("canvas", { width: image.width * 2, height: image.height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save("png", blob), "image/png");
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(asSvg());
}

function asCsv() {
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  return listing(Infinity).map((row) => row.map(quoted).join(",") + "\r\n").join("");
}

const drawable = () => data.curves.x.length > 0 && data.curves.y.length > 0;

// Draw the chart of new data; what was chosen stays.
function renewChart() {
  get("chart-ui").hidden = !drawable();
  if (drawable()) {
    recall();
    ["y", "x"].forEach(radios);
    legend();
  }
  refresh();
}

function startChart() {
  get("save-png").addEventListener("click", savePng);
  get("save-svg").addEventListener("click", () => save("svg", new Blob([asSvg()], { type: "image/svg+xml" })));
  get("save-csv").addEventListener("click", () => save("csv", new Blob([asCsv()], { type: "text/csv" })));
  get("chart-table").addEventListener("toggle", () => get("chart-table").open && fillTable());
  scales();
  smoothing();
  watch();
  startZoom();
  new ResizeObserver(() => {
    if (drawn) refresh();
  }).observe(get("plot"));
}
