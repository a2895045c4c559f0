// Plan: a workload on every type of GPU in this cluster, side by side.
"use strict";
(function () {
  const { field } = carme;
  const results = field("predictions");
  const number = (name) => (field(name).value === "" ? undefined : Number(field(name).value));

  const columns = [
    ["Time", "time"], ["GPU energy", "gpu_energy"], ["Charged energy", "node_energy"], ["Whole-node energy", "whole_node_energy"],
    ["Power per GPU", "average_gpu_power"], ["Emissions", "emissions"], ["Cost", "cost"],
  ];

  async function showWorkloads(chosen) {
    const workloads = await carme.ask("/workloads");
    const select = field("workload");
    select.replaceChildren();
    for (const [own, title] of [[true, "Yours"], [false, "Bundled"]]) {
      const items = workloads.items.filter((item) => item.own === own);
      if (!items.length) continue;
      const group = carme.add(select, "optgroup");
      group.label = title;
      for (const item of items) {
        const option = carme.add(group, "option", item.title);
        option.value = item.name;
        option.selected = item.name === chosen;
      }
    }
  }

  // Every type of GPU in every partition; an A100 if the cluster has none or they are not known.
  async function hardwareToCompare() {
    let reason = "This cluster has no GPUs.";
    try {
      const gpus = await carme.clusterGpus();
      if (gpus.length) return gpus.map((gpu) => ({ title: gpu.type + " (" + gpu.partition + ")", hardware: { partition: gpu.partition, gpu_type: gpu.type } }));
    } catch (error) {
      reason = "The GPUs of this cluster are not known now: " + error.message + ".";
    }
    carme.add(results, "p", reason + " The figures are for an A100.", "problem");
    return [{ title: "A100", hardware: null }];
  }

  function body(choice) {
    const gpus = number("gpus");
    const plan = { kind: "synchronous", gpus: gpus };
    if (number("batch")) plan.batch = number("batch");
    if (number("epochs")) plan.epochs = number("epochs");
    if (field("precision").value) plan.precision = field("precision").value;
    const hardware = choice.hardware ? Object.assign({ count: gpus }, choice.hardware) : { gpus: gpus + "x" + choice.title };
    const request = { workload: field("workload").value, hardware: hardware, plan: plan, scaling: true };
    if (number("samples")) request.samples = number("samples");
    return request;
  }

  function cell(row, figure) {
    const td = carme.add(row, "td", null, "number");
    if (!figure) { td.textContent = "–"; return; }
    carme.add(td, "strong", carme.amount(figure.value, figure.unit));
    carme.add(td, "div", carme.interval(figure), "soft small");
  }

  function card(box, prediction) {
    const section = carme.add(box, "section", null, "card");
    carme.add(section, "h2", prediction.hardware + ": " + prediction.gpus + (prediction.gpus === 1 ? " GPU" : " GPUs"));
    const memory = prediction.memory;
    const list = carme.add(section, "ul");
    const fits = carme.bytes(memory.needed_bytes) + " of " + carme.bytes(memory.capacity_bytes) + " per GPU, fits";
    carme.add(list, "li", "Memory: " + (memory.fits ? fits : "does not fit: " + memory.why_not), memory.fits ? "" : "problem");
    const parts = Object.entries(memory.parts_bytes).filter(([, size]) => size > 0).sort((a, b) => b[1] - a[1]);
    carme.add(list, "li", "Memory by use: " + parts.map(([name, size]) => name + " " + carme.bytes(size)).join(", "), "small");
    if (prediction.limit) {
      const limit = prediction.limit;
      let text = "Limit: " + limit.limit + "; each GPU reaches " + Math.round(100 * limit.efficiency) + " % of its speed alone";
      if (limit.next_limit) text += "; next limit: " + limit.next_limit + ", from " + limit.next_limit_gpus + " GPUs";
      if (limit.stalls_at_gpus) text += "; more than " + limit.stalls_at_gpus / 2 + " GPUs add little speed";
      carme.add(list, "li", text);
    }
    carme.add(list, "li", "Step: " + carme.amount(prediction.step_time.value, "s") + ", batch " + carme.digits(prediction.batch) + ", " + carme.digits(prediction.samples_per_second) + " samples/s");
    carme.add(list, "li", "GPUs idle " + Math.round(100 * prediction.idle.share) + " % of the time");
    carme.add(list, "li", "Power: peak " + carme.amount(prediction.peak_gpu_power.value, "W") + " per GPU; " + carme.amount(prediction.average_node_power.value, "W") + " charged power on average");
    const phases = prediction.phases.filter((p) => p.share > 0.001).map((p) => p.name + " " + Math.round(100 * p.share) + " %");
    carme.add(list, "li", "Phases: " + phases.join(", "));
    for (const note of prediction.notes) carme.add(list, "li", note, "soft");
    carme.add(section, "p", "Coefficients: " + prediction.provenance.words + ".", prediction.provenance.calibrated ? "small good" : "small soft");
  }

  async function predict(event) {
    if (event) event.preventDefault();
    results.replaceChildren();
    const choices = await hardwareToCompare();
    const rows = await Promise.all(choices.map(async (choice) => {
      try {
        return { choice: choice, prediction: (await carme.ask("/predictions", body(choice))).prediction };
      } catch (error) {
        return { choice: choice, error: error };
      }
    }));
    const scroll = carme.add(results, "div", null, "scroll");
    const tableRows = carme.table(scroll, ["GPU", ...columns.map(([title]) => title)], (title) => (title === "GPU" ? "" : "number"));
    for (const { choice, prediction, error } of rows) {
      const row = carme.add(tableRows, "tr");
      carme.add(row, "th", choice.title).scope = "row";
      if (error) {
        const td = carme.add(row, "td", error.message, "problem");
        td.colSpan = columns.length;
        continue;
      }
      if (!prediction.memory.fits) carme.add(row.firstChild, "div", "does not fit", "problem small");
      for (const [, name] of columns) cell(row, prediction[name]);
    }
    carme.add(results, "p", "Below each figure: its 90 % interval. GPU energy is that of the job's GPUs alone. Charged energy is what the energy ledger would charge to the job: its GPUs and its share of the hosts. Whole-node energy is that of everything in the nodes, including GPUs that the job does not use. All without cooling. Emissions and cost follow from charged energy.", "small soft");
    carme.coverage(carme.add(results, "div")).catch(() => null);
    for (const { prediction } of rows) if (prediction) card(results, prediction);
    const query = new URLSearchParams(new FormData(field("request")));
    history.replaceState(null, "", "?" + query);
  }

  // "sequence=512" as the field of a request.
  function sequence(dimensions) {
    const size = dimensions.match(/sequence=(\d+)/);
    return size ? { sequence: Number(size[1]) } : {};
  }

  async function upload() {
    const box = field("upload-status");
    const file = field("onnx").files[0];
    if (!file) { box.textContent = "Choose a file first."; return; }
    const name = field("own-name").value || file.name.replace(/\.(onnx|json)$/, "").toLowerCase().replace(/[^a-z0-9._-]+/g, "-");
    const dimensions = field("dimensions").value;
    const { workload } = file.name.endsWith(".json")
      ? await carme.ask("/workloads/huggingface", { name, config: JSON.parse(await file.text()), ...sequence(dimensions) })
      : await carme.ask("/workloads/onnx?" + new URLSearchParams({ name, dimensions }), file);
    box.textContent = "Saved as " + workload.name + ".";
    for (const warning of workload.warnings) carme.add(box, "p", warning, "soft small");
    await showWorkloads(workload.name);
    predict();
  }

  const address = new URLSearchParams(location.search);
  for (const name of ["gpus", "batch", "epochs", "samples", "precision"]) if (address.get(name)) field(name).value = address.get(name);
  field("request").addEventListener("submit", predict);
  field("upload").addEventListener("click", () => upload().catch((error) => carme.problem(field("upload-status"), error)));
  showWorkloads(address.get("workload") || "resnet-50").then(() => predict()).catch((error) => carme.problem(results, error));
})();
