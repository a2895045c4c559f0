// Explore: the Pareto view. All of its state is in the address, so that a link reopens it.
"use strict";
(function () {
  const { field } = carme;
  // By name: title, unit, and the unit and scale of a plot's axis.
  const figures = JSON.parse(field("request").dataset.figures);
  const text = (name, value) => carme.amount(value, figures[name].unit);
  const varied = ["gpu", "gpus", "batch", "power_cap_watts"];
  const titles = { gpu: "GPU", gpus: "number of GPUs", batch: "batch", power_cap_watts: "power cap (W)" };
  let result = null;
  let pinned = [];
  let limits = {};
  let taskId = null;
  let clusterGpus = [];
  const FALLBACK_GPUS = ["a100", "v100", "t4"];
  const PALETTE = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"];
  const SYMBOLS = ["circle", "square", "diamond", "cross", "triangle-up"];

  function values(name) {
    return field(name).value.split(",").map((word) => word.trim()).filter((word) => word).map((word) => (word === "none" ? null : name === "gpu" ? word : Number(word)));
  }
  function body() {
    const vary = {};
    for (const name of varied) {
      const choices = values(name);
      if (choices.some((value) => Number.isNaN(value))) throw new Error(titles[name] + ": not a number");
      if (choices.length) vary[name] = choices;
    }
    const maxGpus = Math.max(...(vary.gpus || [1]));
    const firstGpu = vary.gpu ? vary.gpu[0] : clusterGpus[0] || FALLBACK_GPUS[0];
    return { workload: field("workload").value, hardware: hardware(firstGpu, maxGpus), vary: vary, objectives: [field("x").value, field("y").value] };
  }
  // `PARTITION:TYPE` names GPUs of this cluster, anything else a GPU with known figures.
  function hardware(gpu, count) {
    const [partition, type] = gpu.split(":");
    return type === undefined ? { gpus: count + "x" + gpu } : { partition: partition, gpu_type: type, count: count };
  }
  // Every type of GPU in this cluster once, in the partition that has most of it.
  async function readClusterGpus() {
    const largest = {};
    try {
      for (const gpu of await carme.clusterGpus()) if (gpu.total > (largest[gpu.type]?.total || 0)) largest[gpu.type] = gpu;
    } catch { return []; } // the page also works with known GPUs
    return Object.values(largest);
  }

  function save() {
    const query = new URLSearchParams(new FormData(field("request")));
    if (pinned.length) query.set("pin", JSON.stringify(pinned));
    if (Object.keys(limits).length) query.set("limits", JSON.stringify(limits));
    history.replaceState(null, "", "?" + query);
  }

  async function simulate(event) {
    if (event) { event.preventDefault(); pinned = []; limits = {}; }
    const box = field("progress");
    box.textContent = "Simulating…";
    save();
    try {
      let answer = await carme.ask("/pareto", body());
      if (answer.id) answer = await follow(answer.id);
      if (!answer) { box.textContent = "Cancelled."; return; }
      result = answer;
      box.textContent = result.points.length + " points, " + result.points.filter((p) => p.on_front).length + " on the Pareto front (" + result.provenance.words + ")" + (result.impossible ? ", " + result.impossible + " impossible: " + result.reasons[0] : "");
      sliders();
      draw();
    } catch (error) {
      carme.problem(box, error);
    }
  }

  // The result of a task when it has ended; none if it was cancelled.
  async function follow(id) {
    taskId = id;
    field("cancel").hidden = false;
    const showProgress = (state) => (field("progress").textContent = state.done + " of " + state.total + " simulated");
    try {
      await stream(id, showProgress);
      // Without a stream, or if it ended before the task did, poll the task.
      let task = await carme.ask("/tasks/" + id);
      while (task.state === "running") {
        showProgress(task);
        await new Promise((resolve) => setTimeout(resolve, 2000));
        task = await carme.ask("/tasks/" + id);
      }
      if (task.state === "failed") throw new Error(task.error);
      return task.result;
    } finally {
      field("cancel").hidden = true;
    }
  }
  function stream(id, showProgress) {
    return new Promise((resolve) => {
      const events = new EventSource(carme.api + "/tasks/" + id + "/events");
      const end = () => { events.close(); resolve(); };
      events.addEventListener("progress", (event) => showProgress(JSON.parse(event.data)));
      events.addEventListener("end", end);
      events.onerror = end;
    });
  }

  const key = (p) => JSON.stringify(varied.map((name) => p.point[name] ?? null));
  const shown = () => result.points.filter((p) => Object.entries(limits).every(([name, maximum]) => p[name] <= maximum));
  const hoverText = (p) => varied.filter((n) => n in p.point).map((n) => "<b>" + titles[n] + ": " + (p.point[n] ?? "none") + "</b>")
    .concat(Object.keys(figures).map((n) => figures[n].title + " " + text(n, p[n]))).join("<br>");

  // Numbers are coloured on a scale. Categories (GPUs, or "none" among numbers) have a trace each, whose
  // colour depends on the whole result: filtering does not change it.
  function groups(points, by) {
    const value = (p) => p.point[by] ?? "none";
    const all = [...new Set(result.points.map(value))];
    if (all.every((v) => typeof v === "number"))
      return [{ name: "points", points: points, marker: { color: points.map(value), colorscale: "Viridis", showscale: true, colorbar: { title: { text: titles[by] } } } }];
    return all.sort((a, b) => String(a).localeCompare(String(b), "en", { numeric: true })).map((category, i) => ({
      name: String(category), points: points.filter((p) => value(p) === category),
      marker: { color: PALETTE[i % PALETTE.length], symbol: SYMBOLS[Math.floor(i / PALETTE.length) % SYMBOLS.length] },
    }));
  }

  const axisTitle = (name) => figures[name].title + " (" + figures[name].axis_unit + ")";

  function draw() {
    const [x, y, by] = [field("x").value, field("y").value, field("colour").value];
    const points = shown();
    const front = points.filter((p) => p.on_front).sort((a, b) => a[x] - b[x]);
    const at = (list, name) => list.map((p) => p[name] / figures[name].axis_scale);
    const marked = points.filter((p) => pinned.includes(key(p)));
    const traces = [
      { x: at(front, x), y: at(front, y), mode: "lines", name: "Pareto front", line: { color: carme.colour("--bad"), width: 2, shape: "hv" }, hoverinfo: "skip" },
      ...groups(points, by).map((group) => ({
        x: at(group.points, x), y: at(group.points, y), mode: "markers", name: group.name, customdata: group.points.map(key), text: group.points.map(hoverText), hovertemplate: "%{text}<extra></extra>",
        marker: Object.assign({ size: 10, line: { width: 1, color: carme.colour("--back") } }, group.marker),
      })),
      { x: at(marked, x), y: at(marked, y), mode: "markers", name: "pinned", hoverinfo: "skip", marker: { size: 18, symbol: "circle-open", color: carme.colour("--text"), line: { width: 2 } } },
    ];
    const layout = carme.layout({ xaxis: { title: { text: axisTitle(x) } }, yaxis: { title: { text: axisTitle(y) } }, legend: { orientation: "h", y: 1.08 } });
    Plotly.react("plot", traces, layout, { displayModeBar: false, responsive: true });
    const plot = field("plot");
    plot.removeAllListeners("plotly_click");
    plot.on("plotly_click", (event) => {
      const clicked = event.points.find((p) => p.customdata)?.customdata;
      if (!clicked) return;
      pinned = pinned.includes(clicked) ? pinned.filter((k) => k !== clicked) : [...pinned, clicked];
      draw();
    });
    table(field("front"), front);
    if (marked.length) table(field("pinned"), marked, true);
    else { field("pinned").replaceChildren(); carme.add(field("pinned"), "p", "Click a point to pin it.", "soft"); }
    save();
  }

  function table(box, points, compare) {
    box.replaceChildren();
    const names = varied.filter((name) => points.some((p) => name in p.point));
    const heads = names.map((name) => titles[name]);
    const rows = carme.table(box, [...heads, ...Object.values(figures).map((figure) => figure.title)], (title) => (heads.includes(title) ? "" : "number"));
    points.forEach((p, index) => {
      const row = carme.add(rows, "tr");
      for (const name of names) carme.add(row, "td", p.point[name] ?? "none");
      for (const name of Object.keys(figures)) {
        const td = carme.add(row, "td", text(name, p[name]), "number");
        if (compare && index) carme.add(td, "div", (100 * (p[name] / points[0][name] - 1)).toFixed(0) + " % change", "soft small");
      }
    });
  }

  function sliders() {
    const box = field("sliders");
    box.replaceChildren();
    for (const name of Object.keys(figures)) {
      const all = result.points.map((p) => p[name]);
      const [low, high] = [Math.min(...all), Math.max(...all)];
      if (!(high > low)) continue;
      const slider = carme.add(box, "div");
      const label = carme.add(slider, "label", "", "small");
      label.htmlFor = "most-" + name;
      const input = carme.add(slider, "input");
      Object.assign(input, { type: "range", id: "most-" + name, min: 0, max: 100, step: 1 });
      // Logarithmic: points differ by factors.
      const value = (share) => low * Math.pow(high / low, share / 100);
      const write = () => (label.textContent = figures[name].title + " at most " + text(name, limits[name] ?? high));
      input.value = limits[name] ? Math.round((100 * Math.log(limits[name] / low)) / Math.log(high / low)) : 100;
      write();
      input.addEventListener("input", () => {
        if (Number(input.value) >= 100) delete limits[name];
        else limits[name] = value(Number(input.value));
        write();
        draw();
      });
    }
  }

  function download(name, text, kind) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind }));
    link.download = name;
    link.click();
  }
  field("csv").addEventListener("click", () => {
    if (!result) return;
    const names = [...varied, ...Object.keys(figures), "on_front"];
    const rows = shown().map((p) => names.map((n) => (n in p.point ? p.point[n] ?? "" : p[n] ?? "")).join(","));
    download("points.csv", [names.join(","), ...rows].join("\n") + "\n", "text/csv");
  });
  field("png").addEventListener("click", () => result && Plotly.downloadImage("plot", { format: "png", filename: "points", width: 1200, height: 700 }));
  field("link").addEventListener("click", async () => {
    // Browsers allow the clipboard only to pages that came over HTTPS or from this machine.
    const copy = navigator.clipboard?.writeText(location.href) ?? Promise.reject();
    field("link").textContent = await copy.then(() => "Copied", () => "Copy the address of this page instead");
  });
  field("cancel").addEventListener("click", () => taskId && carme.ask("/tasks/" + taskId, undefined, "DELETE"));
  for (const name of ["x", "y", "colour"]) field(name).addEventListener("change", () => result && (name === "colour" ? draw() : simulate()));
  field("request").addEventListener("submit", simulate);

  async function begin() {
    const address = new URLSearchParams(location.search);
    for (const name of Object.keys(figures)) for (const axis of ["x", "y"]) carme.add(field(axis), "option", figures[name].title).value = name;
    for (const name of varied) carme.add(field("colour"), "option", titles[name]).value = name;
    field("x").value = "time";
    field("y").value = "energy";
    const [workloads, gpus] = await Promise.all([carme.ask("/workloads"), readClusterGpus()]);
    clusterGpus = gpus.map((gpu) => gpu.partition + ":" + gpu.type);
    field("gpu").value = (clusterGpus.length ? clusterGpus : FALLBACK_GPUS).join(",");
    // Numbers that this cluster has; without one, the numbers in the page.
    if (gpus.length) field("gpus").value = [1, 2, 4, 8].filter((number) => gpus.some((gpu) => gpu.total >= number)).join(",");
    for (const item of workloads.items) carme.add(field("workload"), "option", item.title).value = item.name;
    field("workload").value = "resnet-50";
    for (const name of ["workload", ...varied, "x", "y", "colour"]) if (address.get(name) !== null) field(name).value = address.get(name);
    try {
      pinned = JSON.parse(address.get("pin") || "[]");
      limits = JSON.parse(address.get("limits") || "{}");
    } catch { pinned = []; limits = {}; }
    await simulate();
  }
  begin().catch((error) => carme.problem(field("progress"), error));
})();
