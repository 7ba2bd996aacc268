"use strict";
// The report's behaviour: charts in the reader's theme, sorting, copying, printing. No network, no library but plotly.
(() => {
  const root = document.documentElement;
  const say = (text) => { document.getElementById("status").textContent = text; };

  // Charts. Colours in figures are names ("@s1"): the page's CSS says what they are in light and in dark.
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  function colour(name) {
    probe.style.color = `var(--${name.slice(1)})`;
    return getComputedStyle(probe).color;
  }
  function coloured(part, key = "") {
    if (Array.isArray(part)) return part.map((item) => coloured(item, key));
    if (part && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([k, v]) => [k, coloured(v, k)]));
    }
    return typeof part === "string" && /color$/.test(key) && /^@[a-z0-9]+$/.test(part) ? colour(part) : part;
  }
  function draw(plot) {
    const figure = coloured(figures[plot.dataset.figure]);
    const narrow = plot.clientWidth < 480;
    figure.layout.font.family = getComputedStyle(document.body).fontFamily;
    if (narrow && figure.layout.showlegend !== false) {
      const names = figure.data.filter((t) => t.showlegend !== false).map((t) => t.name.length);
      const named = Math.max(...names) > 14 ? names.length : Math.ceil(names.length / 2);
      const room = figure.layout.meta === "rows" ? 17 * (named - 1) : 12 * named;
      figure.layout.height += room;
      if (figure.layout.meta === "rows") figure.layout.margin.t += room;
      figure.layout.legend.font.size = 11;
    }
    figure.layout.width = plot.clientWidth;
    const options = { displayModeBar: false, displaylogo: false, responsive: false, showTips: false };
    return Plotly.react(plot, figure.data, figure.layout, options);
  }
  const plots = [...document.querySelectorAll(".plot")];
  const drawAll = () => Promise.all(plots.map(draw));
  drawAll().then(() => { root.dataset.drawn = String(plots.length); });

  let width = innerWidth;
  let later;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(later);
    later = setTimeout(drawAll, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // Theme: as the system says, or as the reader says.
  const themes = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  function wear(theme) {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    const now = root.dataset.theme || "auto";
    wear(themes[(themes.indexOf(now) + 1) % themes.length]);
    drawAll();
  });

  // Paper is light and narrow, whatever the screen is.
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme || "auto";
    wear("light");
    root.classList.add("printing");
    document.querySelectorAll("details.print").forEach((d) => { d.open = true; });
    drawAll();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    wear(before);
    drawAll();
  });

  // Tables. Sort keys lie on the row, because a failed row has one wide cell; what is missing stays last.
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [JSON.parse(row.dataset.keys)[column], row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
          return down ? -order : order;
        });
        body.append(...rows.map(([, row]) => row));
        say(`Sorted by ${head.textContent.trim()}, ${down ? "highest first" : "lowest first"}.`);
      });
    });
  }

  // Copying. Where the clipboard is closed to a page from disk, the text is selected instead.
  async function copy(source) {
    try {
      await navigator.clipboard.writeText(source.textContent);
      return true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      return document.execCommand("copy");
    }
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const done = await copy(document.getElementById(button.dataset.copy));
      button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
      say(button.textContent);
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
})();
