// Plan: a workload on every kind of GPU that this cluster has, side by side.
"use strict";
(function () {
  const field = (name) => document.getElementById(name);
  const told = field("told");
  const number = (name) => (field(name).value === "" ? undefined : Number(field(name).value));

  async function workloads(chosen) {
    const found = await carme.ask("/workloads");
    const select = field("workload");
    select.replaceChildren();
    for (const [own, title] of [[true, "Yours"], [false, "Bundled"]]) {
      const mine = found.items.filter((item) => item.own === own);
      if (!mine.length) continue;
      const group = carme.add(select, "optgroup");
      group.label = title;
      for (const item of mine) {
        const option = carme.add(group, "option", item.title);
        option.value = item.name;
        option.selected = item.name === chosen;
      }
    }
  }

  async function places() {
    try {
      const cluster = await carme.ask("/cluster");
      const found = [];
      for (const partition of cluster.partitions)
        for (const gpu of partition.gpus) found.push({ title: gpu.type + " (" + partition.name + ")", most: gpu.total, hardware: { partition: partition.name, gpu_type: gpu.type } });
      return found;
    } catch (error) {
      carme.add(told, "p", "What this cluster has is not known now: " + error.message, "problem");
      return [{ title: "A100", most: 8, hardware: null, gpus: "A100" }];
    }
  }

  function body(place) {
    const gpus = number("gpus");
    const plan = { kind: "synchronous", gpus: gpus };
    if (number("batch")) plan.batch = number("batch");
    if (number("epochs")) plan.epochs = number("epochs");
    if (field("precision").value) plan.precision = field("precision").value;
    const hardware = place.hardware ? Object.assign({ count: gpus }, place.hardware) : { gpus: gpus + "x" + place.gpus };
    const wish = { workload: field("workload").value, hardware: hardware, plan: plan, scaling: true };
    if (number("samples")) wish.samples = number("samples");
    return wish;
  }

  function cell(row, figure) {
    const td = carme.add(row, "td", null, "number");
    if (!figure) { td.textContent = "–"; return; }
    carme.add(td, "strong", carme.amount(figure.value, figure.unit));
    carme.add(td, "div", carme.interval(figure), "soft small");
  }

  function card(box, prediction) {
    const part = carme.add(box, "section", null, "card");
    carme.add(part, "h2", prediction.hardware + ": " + prediction.gpus + (prediction.gpus === 1 ? " GPU" : " GPUs"));
    const memory = prediction.memory;
    const list = carme.add(part, "ul");
    carme.add(list, "li", "Memory: " + carme.bytes(memory.needed_bytes) + " of " + carme.bytes(memory.capacity_bytes) + " a GPU" + (memory.fits ? ", fits" : ", does not fit: " + memory.why_not), memory.fits ? "" : "problem");
    if (prediction.limit) {
      const limit = prediction.limit;
      let text = "Limit: " + limit.limit + "; the GPUs do " + Math.round(100 * limit.efficiency) + " % of what each would do alone";
      if (limit.next_limit) text += "; next " + limit.next_limit + ", from " + limit.next_limit_gpus + " GPUs on";
      if (limit.stalls_at_gpus) text += "; more than " + limit.stalls_at_gpus / 2 + " GPUs hardly help";
      carme.add(list, "li", text);
    }
    carme.add(list, "li", "Step: " + carme.amount(prediction.step_time.value, "s") + ", batch " + carme.digits(prediction.batch) + ", " + carme.digits(prediction.samples_per_second) + " samples/s");
    carme.add(list, "li", "GPUs idle " + Math.round(100 * prediction.idle.share) + " % of the time");
    carme.add(list, "li", "Peak " + carme.amount(prediction.peak_gpu_power.value, "W") + " a GPU, " + carme.amount(prediction.average_node_power.value, "W") + " of the nodes on average");
    const phases = prediction.phases.filter((p) => p.share > 0.001).map((p) => p.name + " " + Math.round(100 * p.share) + " %");
    carme.add(list, "li", "Phases: " + phases.join(", "));
    for (const note of prediction.notes) carme.add(list, "li", note, "soft");
    carme.add(part, "p", "Coefficients: " + prediction.provenance.words + ".", prediction.provenance.calibrated ? "small good" : "small soft");
  }

  async function predict(event) {
    if (event) event.preventDefault();
    told.replaceChildren();
    const all = await places();
    const rows = await Promise.all(all.map(async (place) => {
      try {
        return { place: place, prediction: (await carme.ask("/predictions", body(place))).prediction };
      } catch (error) {
        return { place: place, error: error };
      }
    }));
    const scroll = carme.add(told, "div", null, "scroll");
    const table = carme.add(scroll, "table");
    const head = carme.add(carme.add(table, "thead"), "tr");
    for (const title of ["GPU", "Time", "GPU energy", "Node energy", "Power a GPU", "Emissions", "Cost"]) {
      const th = carme.add(head, "th", title, title === "GPU" ? "" : "number");
      th.scope = "col";
    }
    const bodyPart = carme.add(table, "tbody");
    for (const { place, prediction, error } of rows) {
      const row = carme.add(bodyPart, "tr");
      carme.add(row, "th", place.title).scope = "row";
      if (error) {
        const td = carme.add(row, "td", error.message, "problem");
        td.colSpan = 6;
        continue;
      }
      if (!prediction.memory.fits) carme.add(row.firstChild, "div", "does not fit", "problem small");
      for (const name of ["time", "gpu_energy", "node_energy", "average_gpu_power", "emissions", "cost"]) cell(row, prediction[name]);
    }
    carme.add(told, "p", "Below each figure: its 90 % interval. GPU energy is of the GPUs alone, node energy of the whole nodes without cooling; emissions follow from node energy.", "small soft");
    carme.coverage(carme.add(told, "div")).catch(() => null);
    for (const { prediction } of rows) if (prediction) card(told, prediction);
    const query = new URLSearchParams(new FormData(field("wish")));
    history.replaceState(null, "", "?" + query);
  }

  async function upload() {
    const box = field("upload-told");
    const file = field("onnx").files[0];
    if (!file) { box.textContent = "Choose a file first."; return; }
    const name = field("own-name").value || file.name.replace(/\.onnx$/, "").toLowerCase().replace(/[^a-z0-9._-]+/g, "-");
    const answer = await fetch(carme.api + "/workloads/onnx?name=" + encodeURIComponent(name), {
      method: "POST", body: file,
      headers: { "Content-Type": "application/octet-stream", "X-CSRF-Token": document.querySelector("meta[name=csrf]").content },
    });
    const found = await answer.json();
    if (!answer.ok) { carme.problem(box, new Error(found.detail + (found.hint ? " (" + found.hint + ")" : ""))); return; }
    box.textContent = "Kept as " + found.workload.name + ".";
    await workloads(found.workload.name);
    predict();
  }

  const given = new URLSearchParams(location.search);
  for (const name of ["gpus", "batch", "epochs", "samples", "precision"]) if (given.get(name)) field(name).value = given.get(name);
  field("wish").addEventListener("submit", predict);
  field("upload").addEventListener("click", () => upload().catch((error) => carme.problem(field("upload-told"), error)));
  workloads(given.get("workload") || "resnet-50").then(() => predict()).catch((error) => carme.problem(told, error));
})();
