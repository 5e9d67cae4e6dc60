// Keeps an open page up to date and draws its charts. Without this file the pages show the same until they are loaded again.
"use strict";
(() => {
  const live = document.getElementById("live");
  const charts = document.getElementById("charts");
  const rows = charts ? JSON.parse(charts.dataset.points) : [];
  const DASHES = [[], [8, 4], [2, 3]];
  const HEIGHT = 160;
  let plots = [];

  // ------------------------------------------------------------------ charts

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const chartData = (columns) => [rows.map((row) => row[0]), ...columns.map((at) => rows.map((row) => row[at]))];

  function options(width, columns) {
    const axis = () => ({
      stroke: color("--dim"),
      grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line"), width: 1 },
    });
    const isShort = rows.length > 1 && rows.at(-1)[0] - rows[0][0] < 600;
    const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, isShort ? 19 : 16);
    return {
      width,
      height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (plot, low, high) => [0, Math.max(1, (high || 0) * 1.1)] } },
      axes: [
        { ...axis(), space: 80, values: (plot, splits) => splits.map(clock) },
        { ...axis(), size: 64 },
      ],
      series: [
        {},
        ...columns.map((at, n) => ({ stroke: color(`--chart-${n + 1}`), width: 2, dash: DASHES[n] })),
      ],
    };
  }

  function drawCharts() {
    for (const { plot } of plots) plot.destroy();
    plots = [...document.querySelectorAll(".chart")].map((box) => {
      const columns = JSON.parse(box.dataset.columns);
      box.replaceChildren();
      return { columns, plot: new uPlot(options(box.clientWidth, columns), chartData(columns), box) };
    });
  }

  function addPoint(point) {
    const slot = (row) => Math.floor(row[0] / charts.dataset.slot);
    while (rows.length && (rows.at(-1)[0] > point[0] || slot(rows.at(-1)) === slot(point))) rows.pop();
    rows.push(point);
    while (rows.length > charts.dataset.slots) rows.shift();
    for (const { columns, plot } of plots) plot.setData(chartData(columns));
  }

  if (charts) {
    drawCharts();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
    let resized = 0;
    addEventListener("resize", () => {
      clearTimeout(resized);
      resized = setTimeout(drawCharts, 200);
    });
  }

  // ------------------------------------------------------------------ updates

  if (!live) return;
  const button = document.getElementById("pause");
  const state = document.getElementById("live-state");
  const RETRY_MS = 15000;
  let source = null;
  let isPaused = false;
  let waiting = null;
  let problem = "";

  const say = (text) => {
    if (state.textContent !== text) state.textContent = text;
  };

  function show() {
    // What has the focus, or is about to be pressed, stays where it is.
    if (waiting === null || live.querySelector(":focus:not(.scroll), a:hover, button:hover")) return;
    const text = waiting;
    waiting = null;
    htmx.swap({ text, target: live, sourceElement: live, swap: "innerMorph" });
  }

  function open() {
    // A hidden page holds no connection: a browser has few for one host.
    if (source || isPaused || document.hidden) return;
    source = new EventSource(live.dataset.stream);
    source.addEventListener("open", () => {
      problem = "";
      say("This page updates itself.");
    });
    source.addEventListener("live", (event) => {
      waiting = event.data;
      show();
    });
    source.addEventListener("point", (event) => {
      if (charts) addPoint(JSON.parse(event.data));
    });
    source.addEventListener("problem", (event) => {
      problem = event.data;
      say(problem ? `Not up to date: ${problem}` : "This page updates itself.");
    });
    source.addEventListener("error", () => {
      say(`Not up to date: ${problem || "the host sends no updates"}`);
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, RETRY_MS);
      }
    });
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    if (isPaused) {
      close();
      say("Updates are paused.");
    } else {
      open();
    }
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  live.addEventListener("focusout", () => setTimeout(show));
  live.addEventListener("pointerout", () => setTimeout(show));
  document.getElementById("live-bar").hidden = false;
  open();
})();
