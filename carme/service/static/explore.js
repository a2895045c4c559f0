// Explore: the Pareto view. All of its state is in the address, so that a link reopens it.
"use strict";
(function () {
  const field = (name) => document.getElementById(name);
  const axes = {
    time: ["time (h)", 3600, carme.duration], energy: ["node energy (kWh)", 3.6e6, carme.joules],
    gpu_energy: ["GPU energy (kWh)", 3.6e6, carme.joules], power: ["mean node power (kW)", 1000, carme.watts],
    emissions: ["emissions (kg CO₂e)", 1000, carme.grams],
  };
  const varied = ["gpu", "gpus", "batch", "power_cap_watts"];
  let result = null;
  let pinned = [];
  let limits = {};
  let task = null;

  function values(name) {
    return field(name).value.split(",").map((word) => word.trim()).filter((word) => word).map((word) => (word === "none" ? null : name === "gpu" ? word.toLowerCase() : Number(word)));
  }
  function body() {
    const vary = {};
    for (const name of varied) {
      const found = values(name);
      if (found.some((value) => Number.isNaN(value))) throw new Error(name + " holds something that is not a number");
      if (found.length) vary[name] = found;
    }
    const first = (vary.gpu || ["a100"])[0];
    const most = Math.max(...(vary.gpus || [1]));
    return { workload: field("workload").value, hardware: { gpus: most + "x" + first }, vary: vary, objectives: [field("x").value, field("y").value] };
  }

  function save() {
    const query = new URLSearchParams(new FormData(field("wish")));
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
      let found = await carme.ask("/pareto", body());
      if (found.id) found = await follow(found);
      if (!found) { box.textContent = "Cancelled."; return; }
      result = found;
      box.textContent = result.points.length + " choices, " + result.points.filter((p) => p.on_front).length + " that no other beats" + " (" + result.provenance.words + ")" + (result.impossible ? ", " + result.impossible + " impossible: " + result.reasons[0] : "");
      sliders();
      draw();
    } catch (error) {
      carme.problem(box, error);
    }
  }

  async function follow(begun) {
    task = begun.id;
    field("cancel").hidden = false;
    const tell = (at) => (field("progress").textContent = at.done + " of " + at.total + " simulated");
    try {
      await stream(begun.id, tell);
      // There may have been no stream to be had, or it ended before the task did: then ask.
      let now = await carme.ask("/tasks/" + begun.id);
      while (now.state === "running") {
        tell(now);
        await new Promise((resolve) => setTimeout(resolve, 2000));
        now = await carme.ask("/tasks/" + begun.id);
      }
      if (now.state === "failed") throw new Error(now.error);
      return now.result;
    } finally {
      field("cancel").hidden = true;
    }
  }
  function stream(id, tell) {
    return new Promise((resolve) => {
      const events = new EventSource(carme.api + "/tasks/" + id + "/events");
      const end = () => { events.close(); resolve(); };
      events.addEventListener("progress", (event) => tell(JSON.parse(event.data)));
      events.addEventListener("end", end);
      events.onerror = end;
    });
  }

  const key = (p) => JSON.stringify(varied.map((name) => p.point[name] ?? null));
  const shown = () => result.points.filter((p) => Object.entries(limits).every(([name, most]) => p[name] <= most));
  const said = (p) => varied.filter((n) => n in p.point).map((n) => "<b>" + n + " = " + (p.point[n] ?? "none") + "</b>")
    .concat(Object.entries(axes).map(([n, a]) => a[0].replace(/ \(.*/, "") + " " + a[2](p[n]))).join("<br>");

  function draw() {
    const [x, y, by] = [field("x").value, field("y").value, field("colour").value];
    const points = shown();
    const front = points.filter((p) => p.on_front).sort((a, b) => a[x] - b[x]);
    const raw = points.map((p) => p.point[by] ?? null);
    const words = [...new Set(raw.filter((v) => typeof v === "string"))].sort();
    const colours = raw.map((v) => (typeof v === "string" ? words.indexOf(v) : v ?? 0));
    const bar = { title: { text: by } };
    if (words.length) Object.assign(bar, { tickvals: words.map((_, i) => i), ticktext: words });
    const at = (list, name) => list.map((p) => p[name] / axes[name][1]);
    const marked = points.filter((p) => pinned.includes(key(p)));
    const traces = [
      { x: at(front, x), y: at(front, y), mode: "lines", name: "front", line: { color: carme.colour("--bad"), width: 2, shape: "hv" }, hoverinfo: "skip" },
      { x: at(points, x), y: at(points, y), mode: "markers", name: "choices", customdata: points.map(key), text: points.map(said), hovertemplate: "%{text}<extra></extra>",
        marker: { size: 10, color: colours, colorscale: "Viridis", showscale: true, colorbar: bar, line: { width: 1, color: carme.colour("--back") } } },
      { x: at(marked, x), y: at(marked, y), mode: "markers", name: "pinned", hoverinfo: "skip", marker: { size: 18, symbol: "circle-open", color: carme.colour("--text"), line: { width: 2 } } },
    ];
    const layout = carme.layout({ xaxis: { title: { text: axes[x][0] } }, yaxis: { title: { text: axes[y][0] } }, legend: { orientation: "h", y: 1.08 } });
    Plotly.react("plot", traces, layout, { displayModeBar: false, responsive: true });
    const plot = field("plot");
    plot.removeAllListeners("plotly_click");
    plot.on("plotly_click", (event) => {
      const found = event.points.find((p) => p.customdata);
      if (!found) return;
      pinned = pinned.includes(found.customdata) ? pinned.filter((k) => k !== found.customdata) : [...pinned, found.customdata];
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
    const part = carme.add(box, "table");
    const head = carme.add(carme.add(part, "thead"), "tr");
    for (const name of names) carme.add(head, "th", name).scope = "col";
    for (const name of Object.keys(axes)) carme.add(head, "th", axes[name][0].replace(/ \(.*/, ""), "number").scope = "col";
    const rows = carme.add(part, "tbody");
    points.forEach((p, index) => {
      const row = carme.add(rows, "tr");
      for (const name of names) carme.add(row, "td", p.point[name] ?? "none");
      for (const name of Object.keys(axes)) {
        const td = carme.add(row, "td", axes[name][2](p[name]), "number");
        if (compare && index) carme.add(td, "div", (100 * (p[name] / points[0][name] - 1)).toFixed(0) + " % of change", "soft small");
      }
    });
  }

  function sliders() {
    const box = field("sliders");
    box.replaceChildren();
    for (const name of Object.keys(axes)) {
      const all = result.points.map((p) => p[name]);
      const [low, high] = [Math.min(...all), Math.max(...all)];
      if (!(high > low)) continue;
      const part = carme.add(box, "div");
      const label = carme.add(part, "label", "", "small");
      label.htmlFor = "most-" + name;
      const input = carme.add(part, "input");
      Object.assign(input, { type: "range", id: "most-" + name, min: 0, max: 100, step: 1 });
      // Logarithmic: choices differ by factors.
      const value = (share) => low * Math.pow(high / low, share / 100);
      const write = () => (label.textContent = axes[name][0].replace(/ \(.*/, "") + " at most " + axes[name][2](limits[name] ?? high));
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
    const names = [...varied, ...Object.keys(axes), "on_front"];
    const rows = shown().map((p) => names.map((n) => (n in p.point ? p.point[n] ?? "" : p[n] ?? "")).join(","));
    download("choices.csv", [names.join(","), ...rows].join("\n") + "\n", "text/csv");
  });
  field("png").addEventListener("click", () => result && Plotly.downloadImage("plot", { format: "png", filename: "choices", width: 1200, height: 700 }));
  field("link").addEventListener("click", async () => {
    await navigator.clipboard?.writeText(location.href).catch(() => null);
    field("link").textContent = "The address above is the link";
  });
  field("cancel").addEventListener("click", () => task && carme.ask("/tasks/" + task, undefined, "DELETE"));
  for (const name of ["x", "y", "colour"]) field(name).addEventListener("change", () => result && (name === "colour" ? draw() : simulate()));
  field("wish").addEventListener("submit", simulate);

  async function begin() {
    const given = new URLSearchParams(location.search);
    for (const name of Object.keys(axes)) for (const axis of ["x", "y"]) carme.add(field(axis), "option", axes[name][0].replace(/ \(.*/, "")).value = name;
    for (const name of varied) carme.add(field("colour"), "option", name).value = name;
    field("x").value = "time";
    field("y").value = "energy";
    const found = await carme.ask("/workloads");
    for (const item of found.items) carme.add(field("workload"), "option", item.title).value = item.name;
    field("workload").value = "resnet-50";
    for (const name of ["workload", ...varied, "x", "y", "colour"]) if (given.get(name) !== null) field(name).value = given.get(name);
    try {
      pinned = JSON.parse(given.get("pin") || "[]");
      limits = JSON.parse(given.get("limits") || "{}");
    } catch { pinned = []; limits = {}; }
    await simulate();
  }
  begin().catch((error) => carme.problem(field("progress"), error));
})();
