// Job: measured over time, prediction against measurement, and what to ask for next time.
"use strict";
(function () {
  const id = document.getElementById("title").dataset.job;
  const box = document.getElementById("job");
  const plots = document.getElementById("plots");

  function figure(parent, label, text, more) {
    const part = carme.add(parent, "div", null, "card figure");
    carme.add(part, "span", label, "soft small");
    carme.add(part, "strong", text);
    if (more) carme.add(part, "span", more, "soft small");
  }
  function plot(name, title, unit, series, start) {
    let place = document.getElementById(name);
    if (!place) {
      carme.add(plots, "h2", title);
      place = carme.add(plots, "div", null, "plot low");
      place.id = name;
      place.setAttribute("role", "img");
      place.setAttribute("aria-label", title);
    }
    const x = series.values.map((_, i) => new Date(1000 * (start + (i + 1) * series.step_seconds)));
    const trace = { x: x, y: series.values, mode: "lines+markers", line: { color: carme.colour("--accent") }, hovertemplate: "%{y:.3g} " + unit + "<extra></extra>" };
    Plotly.react(name, [trace], carme.layout({ yaxis: { title: { text: unit }, rangemode: "tozero" } }), { displayModeBar: false, responsive: true });
  }
  // A figure with its interval, and then what was measured; `like` chooses the one unit of all.
  function sentence(label, told, measured, like = told.value) {
    const write = (value) => carme.amount(value, told.unit, like);
    return label + " " + write(told.value) + " (" + write(told.low) + " to " + write(told.high) + ")" + (measured ? "; " + measured(write) : "");
  }
  async function load() {
    const found = await carme.ask("/jobs/" + id);
    const job = found.job;
    box.replaceChildren();
    const asked = Object.entries(job.asked.gpus).map(([kind, count]) => count + " " + kind).join(", ");
    carme.add(box, "p", [job.name, job.user, job.state.toLowerCase(), job.nodes.join(", "), asked, job.asked.cpus + " cores", carme.bytes(job.asked.memory_bytes)].filter((t) => t).join(" · "));
    if (job.problem) carme.add(box, "p", job.problem, "soft");
    const grid = carme.add(box, "div", null, "grid");
    figure(grid, "Ran", carme.duration(job.elapsed_seconds), job.asked.limit_seconds ? "of " + carme.duration(job.asked.limit_seconds) : "");
    const m = job.measured;
    if (m) {
      const total = Object.values(m.joules).reduce((a, b) => a + b, 0);
      if (total) figure(grid, "Energy charged to it", carme.joules(total), "GPU " + carme.joules(m.joules.gpu || 0, total));
      if (m.gpu_held_seconds) figure(grid, "GPU wasted", carme.duration(m.gpu_idle_seconds || 0), "of " + carme.duration(m.gpu_held_seconds) + " held; " + carme.joules(m.gpu_idle_joules || 0));
      if (m.emissions_grams !== null) figure(grid, "Emissions", carme.grams(m.emissions_grams));
      if (m.network_bytes !== null) figure(grid, "Network", carme.bytes(m.network_bytes));
      if (m.memory_peak_bytes) figure(grid, "Memory at most", carme.bytes(m.memory_peak_bytes));
    }
    for (const part of found.comparisons) {
      const made = part.prediction.prediction;
      const card = carme.add(box, "section", null, "card");
      carme.add(card, "h2", "Predicted when it was submitted: " + made.workload);
      const list = carme.add(card, "ul");
      // What was cancelled or failed is not judged, and does not run any more.
      const judged = part.within === null ? (job.ended_at ? "" : " so far") : part.within ? ", within the interval" : ", outside of the interval";
      carme.add(list, "li", sentence("Time", made.time, (write) => "it ran " + write(part.measured_seconds) + judged));
      const joules = part.measured_gpu_joules;
      carme.add(list, "li", sentence("GPU energy", made.gpu_energy, (write) => (joules === null ? "not measured" : "measured " + write(joules))));
      // In the unit of the line above: what is left may be nothing.
      if (part.remaining) carme.add(list, "li", sentence("Left:", part.remaining, null, made.time.value));
      carme.add(card, "p", made.provenance.words, "small soft");
    }
    if (job.advice.length) {
      const card = carme.add(box, "section", null, "card");
      carme.add(card, "h2", "Next time");
      const list = carme.add(card, "ul");
      for (const advice of job.advice) carme.add(list, "li", advice.text);
    }
    for (const note of found.notes) carme.add(box, "p", note, "soft");
    if (job.gpu_plot) plot("gpu", "GPU utilisation", "share", job.gpu_plot, job.started_at);
    if (job.power_plot) plot("power", "Power charged to the job", "W", job.power_plot, job.started_at);
    if (job.network_plot) plot("network", "Network", "bytes/s", job.network_plot, job.started_at);
    if (!job.ended_at) setTimeout(() => load().catch(() => null), 15000);
  }
  load().catch((error) => carme.problem(box, error));
})();
