// Clients: how their labels, their gradients and their accuracies differ; and the classes that are mixed up.

let picked = 0; // the index of the partition that is shown
let judged = null; // the method whose classes are shown

// A heat map: rows and columns have names, `paint` gives a cell's colour, `say` its meaning in words, `write` a
// short text and its colour. `bar` tells what the colours mean: texts from its left to its right end, and the
// colour at a share of the way.
function heat({ heading, note, rows, columns, names, paint, say, bar, room, most = 22, write = null }) {
  const [top, colours] = [4, inks()];
  const left = 28 + largest(rows.map((row) => wide(String(row), 11)), 10);
  const cell = Math.min(most, (room - left - 2) / columns.length);
  const tall = write ? 30 : rows.length > 30 ? Math.min(cell, 12) : Math.max(Math.min(cell, 22), 14);
  const [width, height] = [Math.max(left + cell * columns.length + 2, left + 190), top + tall * rows.length + 76];
  const svg = shape("svg", {
    viewBox: `0 0 ${width} ${height}`, style: `max-width:${Math.round(width)}px`, "font-family": FONT,
    "font-size": 11, fill: colours.quiet, "text-anchor": "middle", role: "img", "aria-label": `${heading}: ${note}`,
  });
  const text = (content, at) => svg.append(shape("text", at, String(content)));
  const cellAt = (i, j) => {
    const [x, y, seam] = [left + j * cell, top + i * tall, Math.min(1, cell / 6)];
    const made = shape("rect", { x, y, width: cell - seam, height: tall - seam, fill: paint(i, j, colours) });
    made.say = say(i, j);
    return made;
  };
  rows.forEach((_, i) => svg.append(...columns.map((_, j) => cellAt(i, j))));
  if (write) {
    rows.forEach((_, i) => columns.forEach((_, j) => {
      const [words, ink] = write(i, j, colours);
      if (wide(words, 12) < cell - 3) {
        text(words, { x: left + (j + 0.5) * cell, y: top + (i + 0.5) * tall + 4, fill: ink, "font-size": 12, "pointer-events": "none" });
      }
    }));
  }
  rows.forEach((row, i) => i % Math.ceil(13 / tall) === 0
    && text(row, { x: left - 6, y: top + (i + 0.5) * tall + 4, "text-anchor": "end" }));
  columns.forEach((column, j) => j % Math.ceil((6 + wide(String(column), 11)) / cell) === 0
    && text(column, { x: left + (j + 0.5) * cell, y: top + rows.length * tall + 14 }));
  text(names[1], { x: left + (columns.length * cell) / 2, y: height - 44 });
  colourBar(svg, bar, left, height - 32, colours);
  text(names[0], { transform: `translate(10 ${top + (rows.length * tall) / 2}) rotate(-90)` });
  const words = element("p", { class: "quiet" }, note);
  for (const kind of ["pointermove", "pointerdown"]) {
    svg.addEventListener(kind, (event) => { words.textContent = event.target.say || note; });
  }
  svg.addEventListener("pointerleave", () => { words.textContent = note; });
  return element("figure", { class: "heat" }, element("h3", {}, heading), words, svg);
}

function colourBar(svg, { ends, at }, left, top, colours) {
  const [long, steps] = [180, 36];
  const layer = shape("g", { class: "bar" });
  for (let i = 0; i < steps; i++) {
    layer.append(shape("rect", { x: left + (i * long) / steps, y: top, width: long / steps + 0.3, height: 9, fill: at(i / (steps - 1), colours) }));
  }
  ends.forEach((words, i) => {
    const share = i / (ends.length - 1);
    layer.append(shape("text", { x: left + share * long, y: top + 22, "text-anchor": share ? (share < 1 ? "middle" : "end") : "start" }, words));
  });
  svg.append(layer);
}

// The colour at a share of a bar from one colour through none to another.
const twoSided = (power = 1) => (t, colours) =>
  shade(colours, t < 0.5 ? colours.cold : colours.accent, Math.abs(2 * t - 1) ** power);

const shade = (colours, colour, share) => mix(mix(colours.paper, colours.quiet, 0.1), colour, share);

const briefly = (name) => (name.length > 16 ? `${name.slice(0, 15)}…` : name);

// How wide a cell of a client may be: enough for the names, if they have some.
const widest = (names) => (names ? 8 + largest(names.map((name) => wide(briefly(name), 11)), 14) : 22);

function labelMap({ counts, shown, names, clients }, room) {
  const classes = counts[0].map((_, c) => c);
  const most = largest(counts.flat(), 1);
  const some = counts.length < clients ? `${counts.length} of ${clients} clients; ` : "";
  const who = (i) => names?.[i] ?? `client ${shown[i]}`;
  const figure = heat({
    heading: "Samples by class", note: `${some}how many samples of each class a client has`, room,
    bar: { ends: ["0", `${most} samples`], at: (t, colours) => shade(colours, colours.accent, t ** 0.7) },
    rows: classes, columns: names?.map(briefly) ?? shown, names: ["class", "client"], most: widest(names),
    paint: (c, i, colours) => shade(colours, colours.accent, (counts[i][c] / most) ** 0.7),
    say: (c, i) => `${who(i)}, class ${c}: ${counts[i][c]} samples`,
  });
  const rows = () => [["client", ...classes.map((c) => `class ${c}`)], ...counts.map((row, i) => [names?.[i] ?? String(shown[i]), ...row])];
  return [figure, fold("Samples by class, as a table", rows)];
}

function similarityMap({ similarity: { clients, names, cosine } }, room) {
  const called = names ?? clients.map(String);
  const apart = cosine.flatMap((row, i) => row.filter((c, j) => i !== j && known(c)));
  const mean = number(Math.round((100 * apart.reduce((a, b) => a + b, 0)) / apart.length) / 100 || 0);
  const written = (c) => (known(c) ? c.toFixed(2) : "—");
  const figure = heat({
    heading: "Similarity of gradients", room, names: ["client", "client"], most: widest(names),
    rows: called.map(briefly), columns: called.map(briefly),
    note: apart.length ? `cosine at the starting model; ${mean} on average` : "one client",
    bar: { ends: ["−1", "0", "1"], at: twoSided() },
    paint: (i, j, colours) => shade(colours, cosine[i][j] < 0 ? colours.cold : colours.accent, Math.abs(cosine[i][j] ?? 0)),
    say: (i, j) => `${names ? "" : "clients "}${called[i]} and ${called[j]}: cosine ${written(cosine[i][j])}`,
  });
  const rows = () => [["client", ...called], ...cosine.map((row, i) => [called[i], ...row.map(written)])];
  return [figure, fold("Similarity, as a table", rows)];
}

// The width of one of two columns of a section, or of the only one on a narrow screen.
function half(place) {
  const whole = Math.max(260, place.clientWidth);
  return whole < 700 ? whole : (whole - 40) / 2;
}

function fold(name, rows) {
  const made = element("details", {}, element("summary", {}, name));
  made.addEventListener("toggle", () => made.open && made.children.length < 2 && made.append(table(name, rows())));
  return made;
}

// One small histogram per method, on one scale: how many clients have which accuracy.
function histograms(all) {
  const [from, colours] = [100 * data.accuracies.low, inks()];
  return all.map(({ method, bins, median, least: lowest, least_name: name, worst }) => {
    const [top, step] = [largest(bins, 1), 240 / bins.length];
    const ink = stroke(look(method).colour);
    const edge = (i) => number(from + ((100 - from) * i) / bins.length);
    const bars = bins.map((count, i) => shape("rect", {
      x: 4 + i * step, y: 52 - (48 * count) / top, width: step - 1, height: (48 * count) / top, fill: ink,
    }, shape("title", {}, `${edge(i)} to ${edge(i + 1)}%: ${count} clients`)));
    const at = 4 + (240 * (100 * worst - from)) / (100 - from);
    const svg = shape("svg", {
      viewBox: "0 0 248 70", "font-family": FONT, "font-size": 10.5, fill: colours.quiet, role: "img",
      "aria-label": `clients of ${method} by accuracy`,
    }, ...bars, shape("line", { x1: 4, x2: 244, y1: 52.5, y2: 52.5, stroke: colours.line }),
    shape("path", { d: `M${at} 2V56`, stroke: colours.ink, "stroke-dasharray": "2 2" }),
    shape("text", { x: 4, y: 66 }, `${number(from)}%`), shape("text", { x: 244, y: 66, "text-anchor": "end" }, "100%"));
    const words = `worst ${number(100 * lowest, 3)}${name ? ` (${name})` : ""}, worst tenth ${number(100 * worst, 3)}, median ${number(100 * median, 3)}%`;
    return element("figure", { class: "hist" }, element("figcaption", {}, swatch(look(method)), method), svg,
      element("p", { class: "quiet" }, words));
  });
}

function confusionMap({ method, confusion }, room) {
  const classes = confusion.map((_, c) => c);
  const sums = confusion.map((row) => row.reduce((a, b) => a + b, 0));
  const share = (i, j) => confusion[i][j] / (sums[i] || 1);
  const wrong = classes.flatMap((i) => classes.filter((j) => j !== i).map((j) => ({ i, j, share: share(i, j) })));
  const worst = wrong.reduce((a, b) => (b.share > a.share ? b : a), { share: 0 });
  const found = worst.share ? `most often, ${worst.i} is taken for ${worst.j}: ${number(100 * worst.share, 3)}%` : "no mistake";
  const figure = heat({
    heading: `Classes mixed up by ${method}`, note: `test samples; ${found}`, room,
    bar: { ends: ["100% wrong", "0%", "100% right"], at: twoSided(0.5) },
    rows: classes, columns: classes, names: ["class", "taken for"],
    paint: (i, j, colours) => shade(colours, i === j ? colours.accent : colours.cold, share(i, j) ** 0.5),
    say: (i, j) => `class ${i} taken for ${j}: ${confusion[i][j]} of ${sums[i]} samples, ${number(100 * share(i, j), 3)}%`,
  });
  const rows = () => [["class", ...classes.map((c) => `as ${c}`)], ...confusion.map((row, i) => [String(i), ...row])];
  return [figure, fold("Classes, as a table", rows)];
}

function drawAccuracies(room) {
  const all = data.accuracies.methods.filter(({ method }) => !state.hidden.has(method));
  if (!all.length) return [];
  const heading = element("h3", {}, "Clients by accuracy");
  const note = element("p", { class: "quiet" }, "Training accuracy of the last model on each client, over all seeds; the dotted line is the mean of the worst tenth.");
  const made = [element("div", {}, heading, note, element("div", { class: "hists" }, ...histograms(all)))];
  const mapped = all.filter(({ confusion }) => confusion.length > 1 && confusion.length <= 100);
  if (mapped.length) {
    const chosen = mapped.find(({ method }) => method === judged) ?? mapped[0];
    const options = mapped.map(({ method }) => [method, method]);
    const pick = menu("pick-judged", "Classes of", options, chosen.method, (method) => {
      judged = method;
      drawClients();
    });
    made.push(element("div", {}, ...(mapped.length > 1 ? [pick] : []), ...confusionMap(chosen, room)));
  }
  return made;
}

function drawClients() {
  const [place, { partitions }] = [get("clients-ui"), data];
  if (!partitions.length && !data.accuracies.methods.length) return;
  const room = half(place);
  const chosen = partitions[picked] ?? partitions[0] ?? {};
  const parts = [chosen.counts?.length && labelMap(chosen, room), chosen.similarity && similarityMap(chosen, room)];
  const heats = parts.filter(Boolean).map((content) => element("div", {}, ...content));
  const options = partitions.map((partition, i) => [i, partition.name]);
  const pick = menu("pick-deal", "Data of", options, picked, (i) => {
    picked = Number(i);
    drawClients();
  });
  place.replaceChildren(element("div", { class: "accuracies" }, ...drawAccuracies(room)),
    ...(partitions.length > 1 ? [pick] : []), element("div", { class: "heats" }, ...heats));
}
