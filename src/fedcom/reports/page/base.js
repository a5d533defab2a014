// Shared by the parts of the page: elements, numbers, colours.

let data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";
const get = (id) => document.getElementById(id);
const known = (value) => typeof value === "number";
const largest = (values, otherwise) => values.reduce((a, b) => Math.max(a, b), otherwise);
const least = (values, otherwise) => values.reduce((a, b) => Math.min(a, b), otherwise);

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const element = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);
const shape = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

function number(value, digits = 4) {
  if (!known(value)) return "—";
  const size = Math.abs(value);
  if (size && (size >= 1e7 || size < 1e-4)) return value.toExponential(2);
  return size >= 10 ** digits ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
}

// How many times, to two digits; halves go to the even digit, as in the tables and the first sentence.
function timesOf(ratio) {
  const value = Number(ratio.toPrecision(12));
  const step = 10 ** (Math.floor(Math.log10(value)) - 1);
  const [low, part] = [Math.floor(value / step), (value / step) % 1];
  return number(part === 0.5 ? (low + (low % 2)) * step : value, 2);
}

// A table from rows of texts and numbers; the first row is the headings.
function table(caption, [head, ...rows]) {
  const kind = (column) => (known(rows[0]?.[column]) ? { class: "number" } : {});
  const cell = (value, column) => element(column ? "td" : "th", { ...kind(column), ...(column ? {} : { scope: "row" }) },
    known(value) ? number(value, 5) : value);
  const top = head.map((value, column) => element("th", { ...kind(column), scope: "col" }, value));
  const body = rows.map((row) => element("tr", {}, ...row.map(cell)));
  const made = element("table", {}, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...top)), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

// ---- colours: a method's own colour on white; shifted until it is readable in small text and on dark

const system = matchMedia("(prefers-color-scheme: dark)");
const onPaper = matchMedia("print"); // which is white, whatever the screen is
const dark = () => !onPaper.matches && (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

function inks() {
  const style = getComputedStyle(root);
  const names = ["paper", "line", "ink", "quiet", "accent", "cold"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const hexOf = (rgb) => "#" + rgb.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("");
const mix = (a, b, share) => hexOf(channels(a).map((v, i) => v + (channels(b)[i] - v) * share));

function luminance(hex) {
  const light = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = channels(hex).map((v) => light(v / 255));
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

const stroke = (hex) => (dark() ? readable(hex, inks().paper, 4) : hex);

// ---- looks: a colour, dashes and a marker for each method

const look = (method) => data.curves.methods.find(({ label }) => label === method)
  ?? { colour: "#767676", dash: [], marker: "circle" };

function marker(kind, x, y, r, attributes) {
  const [w, t] = [r * 0.9, r * 1.25];
  const d = {
    circle: `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    square: `M${x - w} ${y - w}h${2 * w}v${2 * w}h${-2 * w}Z`,
    triangle: `M${x} ${y - t}L${x + t} ${y + w}H${x - t}Z`,
    diamond: `M${x} ${y - t}L${x + t} ${y}L${x} ${y + t}L${x - t} ${y}Z`,
  }[kind];
  return shape("path", { d, class: "marker", ...attributes });
}

// A method's line and marker, small, beside its name.
function sample({ colour, dash, marker: kind }) {
  const ink = stroke(colour);
  return shape("svg", { viewBox: "0 0 28 10", class: "sample", "aria-hidden": "true" },
    shape("line", { x1: 0, x2: 28, y1: 5, y2: 5, stroke: ink, "stroke-width": 2, "stroke-dasharray": dash.join(" ") }),
    marker(kind, 14, 5, 3, { fill: ink }));
}

function swatches() {
  for (const thing of document.querySelectorAll("[data-c]")) {
    const { c: colour, d: dash, m: kind } = thing.dataset;
    thing.style.setProperty("--c", stroke(colour));
    if (kind) thing.replaceChildren(sample({ colour, dash: JSON.parse(dash), marker: kind }));
  }
}

const swatch = ({ colour, dash, marker: kind }) => element("i", {
  class: "swatch", "data-c": colour, "data-d": JSON.stringify(dash), "data-m": kind, "aria-hidden": "true",
}, sample({ colour, dash, marker: kind }));

// ---- the address keeps what was chosen, so that a link or a reload shows the same

function remembered(key) {
  return new URLSearchParams(location.search).getAll(key);
}

function remember(key, values) {
  const all = new URLSearchParams(location.search);
  all.delete(key);
  for (const value of values) all.append(key, value);
  const query = all.toString();
  try {
    history.replaceState(null, "", location.pathname + (query && `?${query}`) + location.hash);
  } catch { /* a page inside another may not change its address */ }
}

// A row of choices, one of which is pressed.
function choices(place, name, legend, options, chosen, pick) {
  const made = element("fieldset", {}, element("legend", {}, legend));
  for (const [value, words] of options) {
    const input = element("input", { type: "radio", name, value });
    input.checked = value === chosen;
    input.addEventListener("change", () => pick(value));
    made.append(element("label", {}, input, element("span", {}, words)));
  }
  place.append(made);
}

function menu(id, words, options, chosen, pick) {
  const made = element("select", { id }, ...options.map(([value, name]) => element("option", { value }, name)));
  made.value = chosen;
  made.addEventListener("change", () => {
    pick(made.value);
    get(id).focus();
  });
  return element("p", { class: "menu" }, element("label", { for: id }, `${words} `), made);
}

// ---- light or dark: the system's choice until the button is used

function theme(redraw) {
  const button = get("theme");
  const apply = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} theme`);
    swatches();
    redraw();
  };
  try {
    if (localStorage.fedcomTheme) root.dataset.theme = localStorage.fedcomTheme;
  } catch { /* a page from a file may have no storage */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.fedcomTheme = root.dataset.theme; } catch { /* then the choice lasts until the page is closed */ }
    apply();
  });
  system.addEventListener("change", apply);
  onPaper.addEventListener("change", apply);
  apply();
}
