// The page's own script: times in the reader's zone, charts, names into the query. Everything else is HTML and htmx.
"use strict";
(() => {
  const two = (number) => String(number).padStart(2, "0");
  const local = (date) =>
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;

  function showTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]")) {
      element.textContent = local(new Date(element.dateTime));
    }
  }

  // Numbers with units, as the server writes them.
  const bytes = (size) => {
    if (size == null) return "–";
    const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    let unit = 0;
    while (Math.abs(size) >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
    return `${unit ? +size.toFixed(1) : size} ${units[unit]}`;
  };
  const span = (ms) => {
    if (ms == null) return "–";
    const size = Math.abs(ms);
    if (size < 1000) return `${+ms.toFixed(2)} ms`;
    if (size < 60000) return `${+(ms / 1000).toFixed(1)} s`;
    if (size < 3600000) return `${+(ms / 60000).toFixed(1)} min`;
    if (size < 86400000) return `${+(ms / 3600000).toFixed(1)} h`;
    return `${+(ms / 86400000).toFixed(1)} d`;
  };
  const count = (number) => (number == null ? "–" : number.toLocaleString("en"));

  const CHARTS = {
    duration: { unit: span, series: [["alignment", "k1", "alignment_ms"], ["freeze", "k2", "freeze_ms"], ["write", "k3", "write_ms"], ["duration", "k0", "duration_ms"]] },
    bytes: { unit: bytes, series: [["new", "k3", "bytes_written"], ["in all", "k0", "bytes_total"]] },
    rows: { unit: count, series: [["rows", "k0", "rows"]] },
    lag: { unit: span, series: [["lag", "k0", "watermark_lag_ms"]] },
    amplification: { unit: (value) => (value == null ? "–" : `${value.toFixed(2)} ×`), series: [["times the live rows", "k0", "space_amplification"]] },
    stored: { unit: bytes, series: [["referred to", "k0", "bytes"], ["live", "k3", "live_bytes"]] },
  };
  const drawn = [];
  let figures = null;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = 1;
    for (const mark of figures.marks || []) {
      const x = plot.valToPos(mark.at_ms / 1000, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = color(mark.kind);
      if (mark.kind === "fence") {
        ctx.setLineDash([4, 3]);
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      } else {
        ctx.beginPath(); ctx.moveTo(x - 5, bbox.top); ctx.lineTo(x + 5, bbox.top); ctx.lineTo(x, bbox.top + 8); ctx.fill();
      }
    }
    ctx.restore();
  }

  function draw(element, open) {
    const chart = CHARTS[element.dataset.chart];
    const axis = { stroke: color("soft"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 } };
    const x = figures.committed_at_ms.map((ms) => ms / 1000);
    const plot = new uPlot({
      width: element.clientWidth, height: 158,
      cursor: { sync: { key: "checkpoints" }, points: { size: 6 } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low || 0), high > 0 ? high * 1.05 : 1] } },
      axes: [axis, { ...axis, size: 72, values: (_, ticks) => ticks.map(chart.unit) }],
      series: [
        { label: "", value: (_, at) => (at == null ? "–" : local(new Date(at * 1000))) },
        ...chart.series.map(([label, name]) => ({
          label, stroke: color(name), width: 1.5, points: { show: x.length < 60, size: 4 }, spanGaps: false, value: (_, value) => chart.unit(value),
        })),
      ],
      hooks: { draw: [drawMarks] },
    }, [x, ...chart.series.map(([, , name]) => figures[name])], element);
    plot.over.addEventListener("click", () => {
      if (open && plot.cursor.idx != null && plot.select.width === 0) location.href = open + figures.checkpoint_id[plot.cursor.idx];
    });
    drawn.push([plot, element]);
  }

  async function drawCharts() {
    const charts = document.getElementById("charts");
    if (!charts) return;
    const answer = await fetch(charts.dataset.series, { headers: { Accept: "application/json" } });
    if (!answer.ok) {
      if (answer.status === 504 || answer.status === 503) setTimeout(drawCharts, 1000);
      return;
    }
    figures = await answer.json();
    for (const [plot] of drawn.splice(0)) plot.destroy();
    for (const element of charts.querySelectorAll(".chart")) draw(element, charts.dataset.open);
    charts.dataset.points = String(figures.checkpoint_id.length);
  }

  addEventListener("resize", () => {
    for (const [plot, element] of drawn) plot.setSize({ width: element.clientWidth, height: 158 });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);

  // Names that a click puts into the query, at the cursor.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-name]");
    const query = document.getElementById("query");
    if (!button || !query) return;
    query.setRangeText(button.dataset.name, query.selectionStart, query.selectionEnd, "end");
    query.focus();
  });

  // A query that runs: since when, and what stops it.
  function running(where, text) {
    const since = performance.now();
    const line = document.createElement("p"), elapsed = document.createElement("span"), stop = document.createElement("button");
    Object.assign(line, { className: "wait", textContent: text });
    Object.assign(stop, { type: "button", className: "stop", textContent: "Stop" });
    stop.addEventListener("click", () => {
      const { dataset, elements } = document.getElementById("sql");
      stop.disabled = true;
      fetch(dataset.stop, { method: "POST", body: new URLSearchParams({ page: elements.page.value }) });
    });
    // A reader of the screen is told once that it runs, and not each second.
    elapsed.setAttribute("aria-hidden", "true");
    line.append(" ", elapsed, " ", stop);
    where.replaceChildren(line);
    const tick = () => { elapsed.textContent = span(Math.floor((performance.now() - since) / 1000) * 1000); };
    const timer = setInterval(() => (line.isConnected ? tick() : clearInterval(timer)), 500);
  }
  const isResult = (event) => event.detail?.ctx?.target?.id === "result";
  document.addEventListener("htmx:before:request", (event) => {
    if (!isResult(event)) return;
    document.getElementById("download").replaceChildren();
    running(document.getElementById("result"), "Running…");
  });
  document.addEventListener("htmx:response:error", (event) => {
    if (isResult(event)) document.getElementById("result").textContent = "The query was not taken: it is too long, or the page is closed.";
  });

  // A file to keep: sent as a form, past htmx, so that the browser saves what comes.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-download]");
    if (!button) return;
    event.preventDefault();
    const { action } = button.form;
    button.form.action = button.formAction;
    HTMLFormElement.prototype.submit.call(button.form);
    button.form.action = action;
    const told = document.getElementById("download");
    running(told, "The browser saves the file when it is made.");
    const line = told.firstChild;
    setTimeout(() => line.remove(), button.form.dataset.seconds * 1000);
  });

  // Completion of the name before the cursor, by Ctrl-Space or Tab after a letter; Escape leaves Tab to the keyboard.
  function complete(query) {
    const at = query.selectionStart;
    const word = /[A-Za-z_0-9."]+$/.exec(query.value.slice(0, at));
    if (!word || query.selectionEnd !== at) return false;
    const names = [...document.querySelectorAll("#names button[data-name]")].map((button) => button.dataset.name);
    const found = names.filter((name) => name.toLowerCase().replaceAll('"', "").startsWith(word[0].toLowerCase().replaceAll('"', "")));
    if (!found.length || found[0] === word[0]) return false;
    let common = found[0];
    for (const name of found) while (!name.startsWith(common)) common = common.slice(0, -1);
    if (common.length <= word[0].length && found.length > 1) return false;
    query.setRangeText(common, at - word[0].length, at, "end");
    return true;
  }
  document.addEventListener("keydown", (event) => {
    const query = event.target;
    if (query.id !== "query") return;
    if (event.key === "Escape") query.dataset.plain = "yes";
    const asked = (event.key === " " && event.ctrlKey) || (event.key === "Tab" && !event.shiftKey && !query.dataset.plain);
    if (asked && complete(query)) event.preventDefault();
    if (event.key === "Enter" && event.ctrlKey) { event.preventDefault(); query.form.requestSubmit(query.form.querySelector("button")); }
  });

  document.addEventListener("htmx:after:swap", () => {
    showTimes(document);
    const version = document.getElementById("live")?.getAttribute("hx-get");
    if (version && version !== drawCharts.version) { drawCharts.version = version; drawCharts(); }
    const address = document.querySelector("[data-address]")?.dataset.address;
    if (address && address !== location.pathname + location.search) history.replaceState(null, "", address);
  });
  showTimes(document);
  const zone = document.getElementById("zone");
  if (zone) zone.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone || "the local zone";
  drawCharts.version = document.getElementById("live")?.getAttribute("hx-get");
  drawCharts();
})();
