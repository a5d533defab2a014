// Zooming the chart: a box drawn with the mouse, two fingers, buttons or the keys + - 0.

const fingers = new Map(); // the pointers that are down, and where
let pulled = null; // where a box was begun
let pinch = null; // where two fingers began, and the view they began with

const zooming = () => pulled?.moved || fingers.size > 1;
const here = (event) => {
  const { left, top } = get("plot").getBoundingClientRect();
  return [event.clientX - left, event.clientY - top];
};

function zoomTo(view) {
  state.zoom = view;
  refresh();
}

// The view of a rectangle of the plot, given in pixels.
function viewOf([left, right], [top, bottom], { x, y } = drawn) {
  return { x: [x.invert(left), x.invert(right)], y: [y.invert(bottom), y.invert(top)] };
}

// Show a share of the view around its middle; with a share above one, more of it, up to all.
function zoomBy(share) {
  const { box, whole } = drawn;
  const around = (a, b) => [(a + b) / 2 - (share * (b - a)) / 2, (a + b) / 2 + (share * (b - a)) / 2];
  const view = viewOf(around(box.left, box.right), around(box.top, box.bottom));
  const all = ["x", "y"].every((way) => view[way][0] <= whole[way][0] && view[way][1] >= whole[way][1]);
  zoomTo(all ? null : view);
}

function drawBox([x0, y0], [x1, y1]) {
  const { box, cursor, colours } = drawn;
  const [left, right] = [x0, x1].map((v) => Math.min(box.right, Math.max(box.left, v))).sort((a, b) => a - b);
  const [top, bottom] = [y0, y1].map((v) => Math.min(box.bottom, Math.max(box.top, v))).sort((a, b) => a - b);
  cursor.replaceChildren(shape("rect", {
    x: left, y: top, width: right - left, height: bottom - top, fill: colours.accent, opacity: 0.15, stroke: colours.accent,
  }));
  return [[left, right], [top, bottom]];
}

function startZoom() {
  const plot = get("plot");
  plot.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, here(event));
    if (event.pointerType === "mouse" && event.button === 0) {
      pulled = { from: here(event), moved: false };
      plot.setPointerCapture(event.pointerId);
    }
    if (fingers.size === 2) pinch = { from: [...fingers.values()], x: drawn.x, y: drawn.y, box: drawn.box };
  });
  plot.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, here(event));
    if (pulled) {
      const [dx, dy] = here(event).map((v, i) => Math.abs(v - pulled.from[i]));
      pulled.moved ||= Math.hypot(dx, dy) > 6;
      if (pulled.moved) pulled.box = drawBox(pulled.from, here(event));
    } else if (fingers.size === 2 && pinch) {
      spreadFingers();
    }
  });
  const up = (event) => {
    fingers.delete(event.pointerId);
    pinch = null;
    const box = pulled?.moved && event.type === "pointerup" ? pulled.box : null;
    pulled = null;
    if (box && box.every(([a, b]) => b - a > 8)) zoomTo(viewOf(...box));
  };
  for (const kind of ["pointerup", "pointercancel"]) plot.addEventListener(kind, up);
  plot.addEventListener("dblclick", () => zoomTo(null));
  get("zoom-in").addEventListener("click", () => zoomBy(0.6));
  get("zoom-out").addEventListener("click", () => zoomBy(1 / 0.6));
  get("zoom-reset").addEventListener("click", () => zoomTo(null));
  get("chart").addEventListener("keydown", (event) => {
    const acts = { "+": () => zoomBy(0.6), "=": () => zoomBy(0.6), "-": () => zoomBy(1 / 0.6), 0: () => zoomTo(null) };
    acts[event.key]?.();
  });
}

// What lay under two fingers stays under them.
function spreadFingers() {
  const now = [...fingers.values()];
  const apart = (pair) => Math.hypot(pair[0][0] - pair[1][0], pair[0][1] - pair[1][1]);
  const middle = (pair, axis) => (pair[0][axis] + pair[1][axis]) / 2;
  const share = apart(pinch.from) / Math.max(20, apart(now));
  const { box } = pinch;
  const back = (pixel, axis) => middle(pinch.from, axis) + (pixel - middle(now, axis)) * share;
  zoomTo(viewOf([back(box.left, 0), back(box.right, 0)], [back(box.top, 1), back(box.bottom, 1)], pinch));
}
