// Clients: how their labels and their gradients differ.

let picked = 0; // the index of the partition that is shown

// A heat map: rows and columns have names, `paint` gives a cell's colour, `say` its meaning in words.
function heat({ heading, note, rows, columns, names, paint, say, room }) {
  const [left, top, colours] = [44, 4, inks()];
  const cell = Math.min(22, (room - left - 2) / columns.length);
  const tall = rows.length > 30 ? Math.min(cell, 12) : Math.max(cell, 14);
  const [width, height] = [left + cell * columns.length + 2, top + tall * rows.length + 38];
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
  rows.forEach((row, i) => i % Math.ceil(13 / tall) === 0
    && text(row, { x: left - 6, y: top + (i + 0.5) * tall + 4, "text-anchor": "end" }));
  columns.forEach((column, j) => j % Math.ceil(22 / cell) === 0
    && text(column, { x: left + (j + 0.5) * cell, y: top + rows.length * tall + 14 }));
  text(names[1], { x: left + (columns.length * cell) / 2, y: height - 6 });
  text(names[0], { transform: `translate(10 ${top + (rows.length * tall) / 2}) rotate(-90)` });
  const words = element("p", { class: "quiet" }, note);
  svg.addEventListener("pointermove", (event) => { words.textContent = event.target.say || note; });
  svg.addEventListener("pointerleave", () => { words.textContent = note; });
  return element("figure", { class: "heat" }, element("h3", {}, heading), words, svg);
}

const shade = (colours, colour, share) => mix(mix(colours.paper, colours.quiet, 0.1), colour, share);

function labelMap({ counts, shown, clients }, room) {
  const classes = counts[0].map((_, c) => c);
  const most = largest(counts.flat(), 1);
  const some = counts.length < clients ? `${counts.length} of ${clients} clients; ` : "";
  const figure = heat({
    heading: "Samples by class", note: `${some}the strongest colour is ${most} samples`, room,
    rows: classes, columns: shown, names: ["class", "client"],
    paint: (c, i, colours) => shade(colours, colours.accent, (counts[i][c] / most) ** 0.7),
    say: (c, i) => `client ${shown[i]}, class ${c}: ${counts[i][c]} samples`,
  });
  const rows = () => [["client", ...classes.map((c) => `class ${c}`)], ...counts.map((row, i) => [String(shown[i]), ...row])];
  return [figure, fold("Samples by class, as a table", rows)];
}

function similarityMap({ similarity: { clients, cosine } }, room) {
  const apart = cosine.flatMap((row, i) => row.filter((c, j) => i !== j && known(c)));
  const mean = number(Math.round((100 * apart.reduce((a, b) => a + b, 0)) / apart.length) / 100 || 0);
  const written = (c) => (known(c) ? c.toFixed(2) : "—");
  const figure = heat({
    heading: "Similarity of gradients", room, rows: clients, columns: clients, names: ["client", "client"],
    note: apart.length ? `cosine at the starting model, blue above 0, orange below; ${mean} on average` : "one client",
    paint: (i, j, colours) => shade(colours, cosine[i][j] < 0 ? colours.cold : colours.accent, Math.abs(cosine[i][j] ?? 0)),
    say: (i, j) => `clients ${clients[i]} and ${clients[j]}: cosine ${written(cosine[i][j])}`,
  });
  const rows = () => [["client", ...clients.map(String)], ...cosine.map((row, i) => [String(clients[i]), ...row.map(written)])];
  return [figure, fold("Similarity, as a table", rows)];
}

function fold(name, rows) {
  const made = element("details", {}, element("summary", {}, name));
  made.addEventListener("toggle", () => made.open && made.children.length < 2 && made.append(table(name, rows())));
  return made;
}

function drawClients() {
  const [place, { partitions }] = [get("clients-ui"), data];
  if (!partitions.length) return;
  const options = partitions.map((partition, i) => element("option", { value: i }, partition.name));
  const pick = element("select", { id: "pick-deal" }, ...options);
  pick.value = picked;
  pick.addEventListener("change", () => {
    picked = Number(pick.value);
    drawClients();
    get("pick-deal").focus();
  });
  const [chosen, whole] = [partitions[picked], place.clientWidth || 600];
  const room = whole < 700 ? whole : (whole - 40) / 2;
  const parts = [chosen.counts?.length && labelMap(chosen, room), chosen.similarity && similarityMap(chosen, room)];
  const heats = parts.filter(Boolean).map((content) => element("div", {}, ...content));
  const head = partitions.length > 1 ? [element("label", { for: "pick-deal" }, "Data of "), pick] : [];
  place.replaceChildren(...head, element("div", { class: "heats" }, ...heats));
}
