// Points and bars: the frontier of accuracy and bytes, bytes to a target, and q against the bound.

const picks = { cost: remembered("cost")[0], aim: remembered("aim")[0] };

const visible = (list) => list.filter(({ method }) => !state.hidden.has(method));

// Points with error bars and their names; `extra` draws what lies behind them.
function scatter(place, { points, xTitle, yTitle, logX, logY, extra = () => [], floor = null }) {
  const width = Math.max(280, place.clientWidth);
  const height = Math.round(Math.min(420, Math.max(280, width * 0.75)));
  const box = { right: width - 16, top: 14, bottom: height - 46 };
  const [xs, ys] = [points.map((p) => p.x), points.flatMap((p) => [p.low, p.high])];
  const colours = inks();
  const [xr, yr] = [padded(extent(xs, logX), logX), extent(floor === null ? ys : [...ys, floor], logY)];
  const y = scale(yr, box.bottom, box.top, logY);
  box.left = leftOf(y);
  const x = scale(xr, box.left, box.right, logX);
  const view = { x, y, box, colours, xr, yr };
  const dots = points.map((p) => {
    const { colour, marker: kind } = look(p.method);
    const [ink, px, py] = [stroke(colour), x(p.x), y(p.y)];
    const bar = `M${px} ${y(p.low)}V${y(p.high)}M${px - 4} ${y(p.low)}h8M${px - 4} ${y(p.high)}h8`;
    return shape("g", { class: "dot", "data-method": p.method },
      shape("path", { d: bar, stroke: ink, "stroke-width": 1.5, fill: "none", class: "error" }),
      marker(kind, px, py, 5.5, { fill: p.hollow ? colours.paper : ink, stroke: ink, "stroke-width": 1.5 }),
      shape("title", {}, p.say));
  });
  const svg = shape("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT, "font-size": 13, role: "img",
    "aria-label": `${yTitle} against ${xTitle}: ${points.map((p) => p.say).join("; ")}`,
  }, axes({ x, y, box, colours, xTitle, yTitle }), ...extra(view), ...dots, ...beside(points, view));
  place.replaceChildren(svg);
}

const padded = ([low, high], log) => (log ? [low / (high / low) ** 0.08, high * (high / low) ** 0.08]
  : [low - 0.06 * (high - low), high + 0.06 * (high - low)]);

// Each point's name at the nearest free place around it, joined to it by a line where it is not right beside it.
function beside(points, { x, y, box, colours }) {
  const taken = points.map((p) => [x(p.x) - 7, y(p.y) - 7, x(p.x) + 7, y(p.y) + 7]);
  const free = ([a, b, c, d]) => a > box.left - 4 && c < box.right + 12 && b > box.top - 8 && d < box.bottom + 2
    && taken.every(([e, f, g, h]) => a > g || c < e || b > h || d < f);
  const size = points.length > 8 ? 11.5 : 12.5;
  return points.flatMap((p) => {
    const [px, py, words] = [x(p.x), y(p.y), short(p.method)];
    const w = wide(words, size);
    for (let away = 10; away < 160; away += 10) {
      for (let turn = 0; turn < 16; turn++) {
        const angle = (turn % 2 ? 1 : -1) * Math.ceil(turn / 2) * (Math.PI / 8);
        const [dx, dy] = [Math.cos(angle) * away, Math.sin(angle) * away];
        const left = px + dx - (w * (1 - Math.cos(angle))) / 2;
        const spot = [left - 1, py + dy - size / 2 - 1, left + w + 1, py + dy + size / 2 + 1];
        if (!free(spot)) continue;
        taken.push(spot);
        const near = Math.max(spot[0], Math.min(px, spot[2]));
        const thread = away > 14 ? [shape("path", { d: `M${px} ${py}L${near} ${py + dy}`, stroke: colours.quiet, "stroke-width": 0.75 })] : [];
        return [...thread, shape("text", {
          x: left, y: py + dy + size / 3, "font-size": size, class: "beside", "data-method": p.method,
          fill: readable(look(p.method).colour, colours.paper, 4.5), stroke: colours.paper, ...HALO,
        }, words)];
      }
    }
    return [];
  });
}

const costTitle = () => data.costs.find(({ key }) => key === picks.cost).title;

function drawFrontier() {
  const points = visible(data.frontier).filter(({ costs }) => costs[picks.cost] > 0).map((one) => {
    const [x, spread] = [one.costs[picks.cost], one.high - one.y];
    const say = `${one.method}: ${number(one.y)}%${one.runs > 1 ? ` ± ${number(spread, 2)}` : ""} for ${number(x, 3)} MB`;
    return { ...one, x, say };
  });
  const best = [];
  for (const p of [...points].sort((a, b) => a.x - b.x || b.y - a.y)) {
    if (!best.length || p.y > best[best.length - 1].y) best.push(p);
  }
  scatter(get("frontier-plot"), {
    points, xTitle: costTitle(), yTitle: "test accuracy at the end (%)", logX: spread(points.map((p) => p.x)) > 8, logY: false,
    extra: ({ x, y, box, colours }) => {
      if (!best.length) return [];
      const steps = best.map((p, i) => `${i ? `H${x(p.x)}` : `M${x(p.x)} ${box.bottom}`}V${y(p.y)}`).join("");
      return [shape("path", { d: `${steps}H${box.right}`, fill: "none", stroke: colours.quiet, "stroke-dasharray": "4 4", class: "front" })];
    },
  });
}

function drawBars() {
  const { choices: aims, baselines, shown: first } = data.aims;
  const aim = aims.find(({ target }) => String(target) === picks.aim) ?? aims.find(({ target }) => target === first);
  const goal = `${number(100 * aim.target)}%`;
  const bars = visible(aim.bars).map((bar) => ({ ...bar, size: bar.costs[picks.cost] }));
  const reached = bars.filter(({ size }) => known(size)).sort((a, b) => a.size - b.size);
  const most = largest(reached.map(({ size }) => size), 0);
  const base = baselines.map((name) => reached.find(({ method }) => method.toLowerCase() === name)).find(Boolean)
    ?? reached[reached.length - 1];
  const told = ({ method, size, reached: some, runs }) => {
    const times = base.size / size;
    const ratio = method === base.method ? "" : times >= 1 ? ` · ${timesOf(times)}× fewer` : ` · ${timesOf(1 / times)}× more`;
    return [`${number(size, 3)} MB${ratio}`, some < runs ? ` (${some}\u00a0of\u00a0${runs}\u00a0runs)` : ""];
  };
  const row = (bar, content) => element("div", { class: "aim", "data-method": bar.method },
    element("span", { class: "name" }, swatch(look(bar.method)), bar.method), content);
  const rows = reached.map((bar) => {
    const piece = element("b", { style: `width:${(100 * bar.size) / most}%`, "data-c": look(bar.method).colour });
    piece.style.setProperty("--c", stroke(look(bar.method).colour));
    return row(bar, element("span", { class: "track" }, piece, element("span", { class: "size" }, ...told(bar))));
  });
  const missed = bars.filter(({ size }) => !known(size))
    .map((bar) => row(bar, element("span", { class: "quiet" }, `${goal} not reached`)));
  const note = base && reached.length > 1 ? `Times fewer or more are against ${base.method}.` : "";
  get("aims-plot").replaceChildren(...rows, ...missed, element("p", { class: "quiet" }, note));
}

function drawRates() {
  const points = visible(data.rates).map((one) => ({ ...one, say: `${one.method}: q ${number(one.y, 3)} at ${number(one.x, 3)} bits` }));
  get("rates-ui").hidden = !points.length;
  if (!points.length) return;
  const bound = (bits) => 1 / Math.expm1(Math.log(4) * bits);
  scatter(get("rates-plot"), {
    points, xTitle: "bits per coordinate, as sent", yTitle: "measured q", logX: "octaves", logY: true,
    extra: ({ x, y, box, colours, xr, yr }) => {
      const along = Array.from({ length: 120 }, (_, i) => x.invert(box.left + (i * (box.right - box.left)) / 119)).filter((b) => b > 0);
      const line = along.map((b) => [x(b), y(Math.min(yr[1], Math.max(yr[0], bound(b))))]);
      const path = line.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L");
      return [
        shape("path", { d: `M${path}L${box.right} ${box.bottom}L${line[0][0]} ${box.bottom}Z`, fill: mix(colours.paper, colours.quiet, 0.12), class: "bound" }),
        shape("text", { x: box.left + 8, y: box.bottom - 10, fill: colours.quiet, "font-size": 12 }, "below the bound"),
      ];
    },
  });
}

function drawPoints() {
  const shownCosts = data.costs.filter(({ key }) => data.frontier.some(({ costs }) => known(costs[key])));
  const some = shownCosts.length > 0;
  const aimed = data.aims.choices.length > 0;
  get("frontier").hidden = !some;
  get("aims").hidden = !aimed;
  if (some) {
    if (!shownCosts.some(({ key }) => key === picks.cost)) picks.cost = shownCosts[0].key;
    const place = get("pick-cost");
    place.replaceChildren();
    choices(place, "pick-cost", "Bytes", shownCosts.map(({ key, name }) => [key, name]), picks.cost, (key) => {
      picks.cost = key;
      remember("cost", [key]);
      drawPoints();
      place.querySelector(":checked").focus();
    });
    drawFrontier();
  }
  if (aimed) {
    const options = data.aims.choices.map(({ target }) => [String(target), `${number(100 * target)}%`]);
    const now = options.some(([value]) => value === picks.aim) ? picks.aim : String(data.aims.shown);
    get("pick-aim").replaceChildren(menu("aim", "Test accuracy", options, now, (value) => {
      picks.aim = value;
      remember("aim", [value]);
      drawPoints();
    }));
    drawBars();
  }
  drawRates();
}
