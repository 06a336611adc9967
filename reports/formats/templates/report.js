(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const printWidth = 680;
  const narrow = matchMedia("(max-width: 640px)");

  function coloured(value, style) {
    if (typeof value === "string") {
      return value.startsWith("@") ? style.getPropertyValue("--" + value.slice(1)).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    }
    return value;
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    for (const element of document.querySelectorAll("[data-chart]")) {
      const figure = coloured(figures[element.dataset.chart], style);
      if (narrow.matches) {  // what stands beside the marks is in the table, too
        figure.layout.annotations = (figure.layout.annotations || []).filter((note) => note.xref !== "paper");
        figure.layout.margin.r = Math.min(figure.layout.margin.r, 16);
      }
      Plotly.react(element, figure.data, figure.layout, { displayModeBar: false, responsive: true, displaylogo: false });
    }
    document.documentElement.dataset.drawn = "yes";
  }

  function number(text) {
    const found = text.replace(/,/g, "").match(/^[^0-9]{0,2}?(-?[0-9]*\.?[0-9]+)/);
    return found ? parseFloat(found[1]) : null;
  }

  function sortBy(table, column, head) {
    const body = table.tBodies[0];
    const upward = head.getAttribute("aria-sort") !== "ascending";
    const key = (row) => row.cells[column].textContent.trim();
    const rows = [...body.rows].filter((row) => row.cells.length > column);
    const numeric = head.classList.contains("num");
    rows.sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      const order = numeric ? (number(a) ?? -Infinity) - (number(b) ?? -Infinity) : a.localeCompare(b);
      return upward ? order : -order;
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", upward ? "ascending" : "descending");
    body.append(...rows);
  }

  function csv(table) {
    const quoted = (cell) => '"' + cell.innerText.trim().replace(/\s*\n\s*/g, "; ").replace(/"/g, '""') + '"';
    return [...table.rows].map((row) => [...row.cells].map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  for (const table of document.querySelectorAll("table")) {
    if (!table.tHead || table.tBodies[0].rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Sort by " + head.textContent.trim();
      button.append(...head.childNodes);
      button.addEventListener("click", () => sortBy(table, column, head));
      head.append(button);
    });
    const save = document.createElement("button");
    save.type = "button";
    save.className = "save";
    save.textContent = "CSV";
    save.title = "Save this table as CSV";
    save.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
      link.download = "ringside-table.csv";
      link.click();
      URL.revokeObjectURL(link.href);
    });
    table.parentElement.append(save);
  }

  draw();
  narrow.addEventListener("change", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  window.addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
    for (const element of document.querySelectorAll("[data-chart]")) Plotly.relayout(element, { width: printWidth });
  });
  window.addEventListener("afterprint", () => {
    for (const element of document.querySelectorAll("[data-chart]")) Plotly.relayout(element, { width: null, autosize: true });
  });
})();
