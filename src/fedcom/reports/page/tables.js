// Tables whose columns can be sorted: once upwards, once downwards, then as they were.

const sorted = new Map(remembered("sort").map((word) => {
  const [, name, column, way] = word.match(/^(.*):(\d+):(up|down)$/) ?? [];
  return [name, { column: Number(column), way }];
}));

function valueOf(row, column) {
  const cell = row.children[column];
  if ("v" in cell.dataset) return Number(cell.dataset.v);
  const text = cell.textContent.trim();
  return text === "—" ? null : text;
}

function compared(a, b) {
  if (a === null || b === null) return 0;
  return known(a) && known(b) ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortRows(made, name) {
  const body = made.tBodies[0];
  const { column = null, way = null } = sorted.get(name) ?? {};
  const rows = [...body.rows].sort((a, b) => a.dataset.i - b.dataset.i);
  if (column !== null) {
    const gone = (row) => (valueOf(row, column) === null ? 1 : 0);
    const sign = way === "up" ? 1 : -1;
    rows.sort((a, b) => gone(a) - gone(b) || sign * compared(valueOf(a, column), valueOf(b, column)));
  }
  body.append(...rows);
  [...made.tHead.rows[0].cells].forEach((head, i) => {
    head.setAttribute("aria-sort", i !== column ? "none" : way === "up" ? "ascending" : "descending");
  });
}

function sortable() {
  for (const made of document.querySelectorAll("main .scroll > table")) {
    const name = made.caption.textContent;
    if (made.dataset.ready || made.tBodies[0].rows.length < 2) continue;
    made.dataset.ready = "yes";
    [...made.tBodies[0].rows].forEach((row, i) => { row.dataset.i = i; });
    [...made.tHead.rows[0].cells].forEach((head, column) => {
      const button = element("button", { type: "button", class: "sort" }, ...head.childNodes);
      button.addEventListener("click", () => {
        const now = sorted.get(name);
        const next = now?.column !== column ? "up" : now.way === "up" ? "down" : null;
        if (next) sorted.set(name, { column, way: next });
        else sorted.delete(name);
        remember("sort", [...sorted].map(([key, { column: at, way }]) => `${key}:${at}:${way}`));
        sortRows(made, name);
      });
      head.replaceChildren(button);
    });
    sortRows(made, name);
  }
}
