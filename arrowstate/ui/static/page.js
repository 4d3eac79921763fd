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
  // What all charts show: everything (null), the last so many milliseconds, or from one time to another.
  let view = null;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = 1;
    for (const mark of figures.marks || []) {
      const x = plot.valToPos(mark.at_ms / 1000, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = color(mark.kind);
      if (mark.kind === "fence" || mark.kind === "restart") {
        ctx.setLineDash(mark.kind === "fence" ? [4, 3] : []);
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      } else if (mark.kind === "failed") {
        const y = bbox.top + bbox.height - 6;
        ctx.setLineDash([]);
        ctx.beginPath(); ctx.moveTo(x - 4, y - 4); ctx.lineTo(x + 4, y + 4); ctx.moveTo(x - 4, y + 4); ctx.lineTo(x + 4, y - 4); ctx.stroke();
      } else {
        ctx.beginPath(); ctx.moveTo(x - 5, bbox.top); ctx.lineTo(x + 5, bbox.top); ctx.lineTo(x, bbox.top + 8); ctx.fill();
      }
    }
    ctx.restore();
  }

  const times = () => figures.committed_at_ms;
  function bounds() {
    // A job that fails has marks after its last checkpoint.
    const all = times(), last = Math.max(all[all.length - 1], ...(figures.marks || []).map((mark) => mark.at_ms)) / 1000;
    // A chart of a single time has some around it.
    const first = all.length > 1 ? all[0] / 1000 : last - 1;
    return view == null ? [first, last] : typeof view === "number" ? [last - view / 1000, last] : view;
  }

  // Every chart shows the same time, whatever chose it.
  function place() {
    if (!figures || !times().length) return;
    const [min, max] = bounds();
    for (const [plot] of drawn) plot.setScale("x", { min, max });
    for (const button of document.querySelectorAll("#ranges button")) {
      button.setAttribute("aria-pressed", String(view === (button.dataset.span ? Number(button.dataset.span) : null)));
    }
  }
  function zoomed(plot, key) {
    if (key !== "x") return;
    const { min, max } = plot.scales.x, [from, to] = bounds(), all = times();
    Object.assign(plot.root.parentNode.dataset, { from: min, to: max });
    if ((min === from && max === to) || !plot.select.width) return;
    // A reader has chosen a part of it with the mouse.
    view = [min, max];
    queueMicrotask(place);
  }

  // What is marked where the cursor is.
  function tellMarks(plot) {
    const told = document.getElementById("marked");
    const { left } = plot.cursor;
    const near = left == null || left < 0 ? [] : (figures.marks || []).filter((mark) => Math.abs(plot.valToPos(mark.at_ms / 1000, "x") - left) < 5);
    const text = near.slice(0, 3).map((mark) => mark.label).join(" · ");
    if (told && told.textContent !== text) told.textContent = text;
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
      hooks: {
        draw: [drawMarks],
        setScale: [zoomed],
        setCursor: [tellMarks, (own) => { if (own.cursor.idx == null && x.length) own.setLegend({ idx: x.length - 1 }, false); }],
      },
    }, [x, ...chart.series.map(([, , name]) => figures[name])], element);
    // A click opens the checkpoint, unless it is the first of a double click.
    let opening = 0;
    plot.over.addEventListener("click", () => {
      const at = plot.cursor.idx;
      clearTimeout(opening);
      if (open && at != null && plot.select.width === 0) opening = setTimeout(() => { location.href = open + figures.checkpoint_id[at]; }, 300);
    });
    plot.over.addEventListener("dblclick", () => { clearTimeout(opening); view = null; place(); });
    // A legend without a cursor has the newest figures.
    if (x.length) plot.setLegend({ idx: x.length - 1 }, false);
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
    place();
    const ranges = document.getElementById("ranges");
    if (ranges) ranges.hidden = false;
    charts.dataset.points = String(figures.checkpoint_id.length);
  }

  addEventListener("resize", () => {
    for (const [plot, element] of drawn) plot.setSize({ width: element.clientWidth, height: 158 });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#ranges button");
    if (!button) return;
    view = button.dataset.span ? Number(button.dataset.span) : null;
    place();
  });

  // Tables of rows are sorted by a click on the name of a column, and filtered by a text: what is shown, not the state.
  const amount = (cell) => {
    const text = cell.textContent.trim();
    const number = cell.classList.contains("n") ? parseFloat(text.replaceAll(",", "")) : NaN;
    return Number.isNaN(number) ? text : number;
  };
  const ordered = (one, other) => (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en"));
  function sortBy(head, table) {
    const place = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [amount(row.cells[place]), row]);
    rows.sort(([one], [other]) => (down ? ordered(other, one) : ordered(one, other)));
    body.append(...rows.map(([, row]) => row));
  }
  function makeSortable(root) {
    for (const table of root.querySelectorAll("table.rows:not([data-sortable])")) {
      table.dataset.sortable = "yes";
      if (!table.tHead || !table.tBodies[0] || table.tBodies[0].rows.length < 2) continue;
      for (const head of table.tHead.rows[0].cells) {
        if (!head.textContent.trim()) continue;
        const button = document.createElement("button");
        Object.assign(button, { type: "button", className: "sort" });
        button.append(...head.childNodes);
        button.addEventListener("click", () => sortBy(head, table));
        head.append(button);
      }
      const label = document.createElement("label"), field = document.createElement("input");
      Object.assign(field, { type: "search", size: 24, autocomplete: "off" });
      field.addEventListener("input", () => {
        const wanted = field.value.toLowerCase();
        for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      });
      label.className = "filter";
      label.append("Of the rows shown, those with ", field);
      table.before(label);
    }
  }

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
    makeSortable(document);
    const version = document.getElementById("live")?.getAttribute("hx-get");
    if (version && version !== drawCharts.version) { drawCharts.version = version; drawCharts(); }
    const address = document.querySelector("[data-address]")?.dataset.address;
    if (address && address !== location.pathname + location.search) history.replaceState(null, "", address);
  });
  showTimes(document);
  makeSortable(document);
  const zone = document.getElementById("zone");
  if (zone) zone.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone || "the local zone";
  drawCharts.version = document.getElementById("live")?.getAttribute("hx-get");
  drawCharts();
})();
