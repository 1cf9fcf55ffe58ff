"use strict";
// Draws the page's charts in the colours of the page, and again when those change.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 760px)");
  const charts = [...document.querySelectorAll("figure.chart")].map((figure) => ({
    figure,
    plot: figure.querySelector(".plot"),
    spec: JSON.parse(figure.querySelector("script").textContent),
    hidden: new Set(),
  }));

  // Under the keys of colours alone: a class may be called "$5".
  function inColours(value, colour, key = "") {
    if (typeof value === "string") return /color/.test(key) && value.startsWith("$") ? colour(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map((item) => inColours(item, colour, key));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, inColours(item, colour, name)]));
  }

  function layoutOf(spec, colour) {
    const axis = {
      automargin: true, gridcolor: colour("rule"), linecolor: colour("rule"), zeroline: false,
      tickfont: { size: 12 }, title: { standoff: 8, font: { size: 12, color: colour("soft") } },
    };
    const own = inColours(spec.layout, colour);
    const merged = (theirs) => ({ ...axis, ...theirs, title: { ...axis.title, ...(theirs || {}).title } });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
      margin: { l: 42, r: 10, t: 10, b: 36 }, showlegend: false, hovermode: "x",
      hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("rule"), font: { color: colour("ink") }, namelength: -1 },
      // A finger that moves over a chart scrolls the page.
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      ...own, xaxis: merged(own.xaxis), yaxis: merged(own.yaxis),
    };
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const seen = {};
    // A custom property may name another one; a probe element gives the colour that comes of it.
    const probe = document.body.appendChild(document.createElement("i"));
    const colour = (name) => {
      if (!(name in seen)) {
        probe.style.color = `var(--${name})`;
        seen[name] = style.getPropertyValue(`--${name}`) && getComputedStyle(probe).color;
      }
      return seen[name];
    };
    const drawn = charts.map(({ plot, spec, hidden }) => {
      const traces = inColours(spec.data, colour).map((trace, number) => ({ ...trace, visible: !hidden.has(number) }));
      return Plotly.react(plot, traces, layoutOf(spec, colour), { responsive: true, displayModeBar: false });
    });
    probe.remove();
    return Promise.all(drawn);
  }

  for (const one of charts) {
    for (const button of one.figure.querySelectorAll("button[data-traces]")) {
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        for (const number of button.dataset.traces.split(",").map(Number)) {
          if (shown) one.hidden.delete(number);
          else one.hidden.add(number);
        }
        draw();
      });
    }
  }
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  draw().then(() => { document.documentElement.dataset.drawn = "true"; });
})();
