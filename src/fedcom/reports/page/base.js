// Shared by the parts of the page: elements, numbers, colours.

const data = JSON.parse(document.getElementById("data").textContent);
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
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

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

// ---- light or dark: the system's choice until the button is used

function theme(redraw) {
  const button = get("theme");
  const apply = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${dark() ? "light" : "dark"} theme`);
    for (const thing of document.querySelectorAll("[data-c]")) {
      thing.style.setProperty("--c", stroke(thing.dataset.c));
    }
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
  apply();
}
