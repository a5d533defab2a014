// Sweeps: a map of each method's score over two keys of the grid; over the other keys, the best is shown.

const axesOf = {}; // the two keys that are shown, by the sweep's name

function sweepMap(sweep, method, [across, down], room) {
  const own = sweep.points.filter((p) => p.method === method);
  const better = sweep.score === "test_accuracy" ? (a, b) => a > b : (a, b) => a < b;
  const [columns, rows] = [sweep.axes[across], down ? sweep.axes[down] : [""]];
  const cellOf = (i, j) => own
    .filter((p) => p.at[across] === columns[j] && (!down || p.at[down] === rows[i]))
    .reduce((best, p) => (!best || (known(p.score) && (!known(best.score) || better(p.score, best.score))) ? p : best), null);
  const cells = rows.map((_, i) => columns.map((_, j) => cellOf(i, j)));
  const scores = cells.flat().filter((c) => known(c?.score)).map((c) => c.score);
  const top = scores.reduce((a, b) => (better(b, a) ? b : a), scores[0]);
  const range = [least(scores, Infinity), largest(scores, -Infinity)];
  const worst = top === range[0] ? range[1] : range[0];
  const written = (score) => (!known(score) || !Number.isFinite(score) ? "" : sweep.score === "test_accuracy" ? (100 * score).toFixed(1) : number(score, 3));
  const rank = (score) => {
    const share = range[1] > range[0] ? (score - range[0]) / (range[1] - range[0]) : 1;
    return sweep.score === "test_accuracy" ? share : 1 - share;
  };
  const at = (i, j) => [`${across} ${columns[j]}`, ...(down ? [`${down} ${rows[i]}`] : [])].join(", ");
  const place = cells.flatMap((row, i) => row.map((c, j) => [c, i, j])).find(([c]) => c && c.score === top);
  const note = scores.length ? `best: ${written(top)} at ${at(place[1], place[2])}` : "every point diverged";
  return heat({
    heading: method, note, rows, columns, names: [down ?? "", across], room, most: 90,
    bar: { ends: [written(worst), written(top)], at: (t, colours) => shade(colours, colours.accent, 0.08 + 0.92 * t) },
    paint: (i, j, colours) => (known(cells[i][j]?.score) ? shade(colours, colours.accent, 0.08 + 0.92 * rank(cells[i][j].score)) : colours.paper),
    write: (i, j, colours) => {
      const cell = cells[i][j];
      if (!cell) return ["", colours.quiet];
      if (!known(cell.score)) return ["×", colours.cold];
      return [written(cell.score) + (cell.score === top ? " ★" : ""), rank(cell.score) > 0.5 ? colours.paper : colours.ink];
    },
    say: (i, j) => {
      const cell = cells[i][j];
      if (!cell) return `${at(i, j)}: not run yet`;
      if (!known(cell.score)) return `${at(i, j)}: ${cell.lost} of ${cell.runs} diverged`;
      return `${at(i, j)}: ${written(cell.score)}${known(cell.spread) ? ` ± ${written(cell.spread)}` : ""}, ${cell.runs} seeds`;
    },
  });
}

function drawSweeps() {
  get("sweeps").hidden = !data.sweeps.length;
  const place = get("sweeps-ui");
  const room = half(get("sweeps"));
  place.replaceChildren(...data.sweeps.map((sweep, index) => {
    const keys = Object.keys(sweep.axes).sort((a, b) => sweep.axes[b].length - sweep.axes[a].length);
    const usual = ["eta", "gamma"].every((key) => keys.includes(key)) ? ["eta", "gamma"] : keys.slice(0, 2);
    const chosen = axesOf[sweep.name] ?? usual;
    const pick = (way, words) => menu(`sweep-${index}-${way}`, words, keys.map((key) => [key, key]), chosen[way], (key) => {
      const next = [...chosen];
      next[way] = key;
      if (next[0] === next[1]) next[1 - way] = keys.find((other) => other !== key);
      axesOf[sweep.name] = next;
      drawSweeps();
    });
    const names = [...new Set(sweep.points.map((p) => p.method))];
    const rest = keys.length > 2 ? "; over the other keys, the best" : "";
    return element("div", {}, element("h3", {}, sweep.name),
      element("p", { class: "quiet" }, `${sweep.title}, mean over seeds${rest}; ★ is the best, × diverged; ${sweep.done}`),
      ...(keys.length > 2 ? [element("div", { class: "controls" }, pick(0, "Across"), pick(1, "Down"))] : []),
      element("div", { class: "heats" }, ...names.map((method) => sweepMap(sweep, method, chosen, room))));
  }));
}
