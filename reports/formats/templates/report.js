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

  function withLegendAbove(layout, data) {  // on a phone its entries need several rows
    const names = data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name.length);
    const rows = Math.ceil(names.length / (Math.max(...names) > 16 ? 1 : 2));
    layout.margin.t += 20 * rows;
    layout.height += 20 * rows;
  }

  function draw(again) {
    if (!window.Plotly) return;  // not unpacked yet
    const style = getComputedStyle(document.documentElement);
    for (const element of document.querySelectorAll("[data-chart]")) {
      if (element.offsetParent === null || (element.firstElementChild && !again)) continue;  // folded, or there already
      const figure = coloured(figures[element.dataset.chart], style);
      if (narrow.matches && figure.layout.showlegend) withLegendAbove(figure.layout, figure.data);
      Plotly.react(element, figure.data, figure.layout, { displayModeBar: false, responsive: true, displaylogo: false });
    }
    document.documentElement.dataset.drawn = "yes";
  }

  function unfold(elements) {
    for (const folded of elements) folded.open = true;
    draw();
  }

  function followHash() {  // such as #why; #all unfolds everything
    const target = document.getElementById(location.hash.slice(1));
    if (location.hash === "#all") unfold(document.querySelectorAll("details"));
    else if (target && target.tagName === "DETAILS") {
      unfold([...document.querySelectorAll("details")].filter((one) => one.contains(target)));
      target.scrollIntoView();
    }
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

  async function start() {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
    draw();
  }

  followHash();
  start();
  window.addEventListener("hashchange", followHash);
  document.addEventListener("toggle", () => draw(), true);
  narrow.addEventListener("change", () => draw(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
  window.addEventListener("beforeprint", () => {
    unfold(document.querySelectorAll("details"));
    for (const element of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(element, { width: printWidth });
  });
  window.addEventListener("afterprint", () => {
    for (const element of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(element, { width: null, autosize: true });
  });
})();
