(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const printWidth = 680;

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
      Plotly.react(element, figure.data, figure.layout, { displayModeBar: false, responsive: true, displaylogo: false });
    }
    document.documentElement.dataset.drawn = "yes";
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  window.addEventListener("beforeprint", () => {
    for (const element of document.querySelectorAll("[data-chart]")) Plotly.relayout(element, { width: printWidth });
  });
  window.addEventListener("afterprint", () => {
    for (const element of document.querySelectorAll("[data-chart]")) Plotly.relayout(element, { width: null, autosize: true });
  });
})();
