// Job: measurements over time, predictions against measurements, and what to request next time.
"use strict";
(function () {
  const { field } = carme;
  const id = field("title").dataset.job;
  const box = field("job");
  const plots = field("plots");

  function figure(parent, label, text, note) {
    const card = carme.add(parent, "div", null, "card figure");
    carme.add(card, "span", label, "soft small");
    carme.add(card, "strong", text);
    if (note) carme.add(card, "span", note, "soft small");
  }
  function plot(name, title, unit, series, start) {
    if (!field(name)) {
      carme.add(plots, "h2", title);
      const plotBox = carme.add(plots, "div", null, "plot low");
      plotBox.id = name;
      plotBox.setAttribute("role", "img");
      plotBox.setAttribute("aria-label", title);
    }
    const x = series.values.map((_, i) => new Date(1000 * (start + (i + 1) * series.step_seconds)));
    const trace = { x: x, y: series.values, mode: "lines+markers", line: { color: carme.colour("--accent") }, hovertemplate: "%{y:.3g} " + unit + "<extra></extra>" };
    Plotly.react(name, [trace], carme.layout({ yaxis: { title: { text: unit }, rangemode: "tozero" } }), { displayModeBar: false, responsive: true });
  }
  // An estimate with its interval, and then the measurement, all in the unit that `like` chooses.
  function sentence(label, estimate, measured, like = estimate.value) {
    const write = (value) => carme.amount(value, estimate.unit, like);
    return label + " " + write(estimate.value) + " (" + carme.interval(estimate, like) + ")" + (measured ? "; " + measured(write) : "");
  }
  async function load() {
    const answer = await carme.ask("/jobs/" + id);
    const job = answer.job;
    box.replaceChildren();
    carme.add(box, "p", [job.name, job.user, job.state.toLowerCase(), job.nodes.join(", "), carme.gpuText(job), carme.count(job.asked.cpus, "core"), carme.bytes(job.asked.memory_bytes)].filter((t) => t).join(" · "));
    if (job.problem) carme.add(box, "p", job.problem, "soft");
    const grid = carme.add(box, "div", null, "grid");
    figure(grid, "Ran", carme.duration(job.elapsed_seconds), job.asked.limit_seconds ? "of " + carme.duration(job.asked.limit_seconds) : "");
    const m = job.measured;
    if (m) {
      const total = carme.chargedJoules(job);
      if (total) figure(grid, "Charged energy", carme.joules(total), "GPU " + carme.joules(m.joules.gpu || 0, total));
      if (m.gpu_held_seconds) figure(grid, "GPU time wasted", carme.duration(m.gpu_idle_seconds || 0), "of " + carme.duration(m.gpu_held_seconds) + " held; " + carme.joules(m.gpu_idle_joules || 0));
      if (m.emissions_grams !== null) figure(grid, "Emissions", carme.grams(m.emissions_grams));
      if (m.network_bytes !== null) figure(grid, "Network", carme.bytes(m.network_bytes));
      if (m.memory_peak_bytes) figure(grid, "Memory at most", carme.bytes(m.memory_peak_bytes));
    }
    for (const comparison of answer.comparisons) {
      const prediction = comparison.prediction.prediction;
      const card = carme.add(box, "section", null, "card");
      carme.add(card, "h2", "Predicted when it was submitted: " + prediction.workload);
      const list = carme.add(card, "ul");
      // A cancelled or failed job is not judged, and no longer runs.
      const judged = comparison.within === null ? (job.ended_at ? "" : " so far") : comparison.within ? ", within the interval" : ", outside of the interval";
      carme.add(list, "li", sentence("Time", prediction.time, (write) => "it ran " + write(comparison.measured_seconds) + judged));
      const joules = comparison.measured_gpu_joules;
      carme.add(list, "li", sentence("GPU energy", prediction.gpu_energy, (write) => (joules === null ? "not measured" : "measured " + write(joules))));
      // In the unit of the time above, because zero has no unit of its own.
      if (comparison.remaining) carme.add(list, "li", sentence("Left:", comparison.remaining, null, prediction.time.value));
      carme.add(card, "p", prediction.provenance.words, "small soft");
    }
    if (job.advice.length) {
      const card = carme.add(box, "section", null, "card");
      carme.add(card, "h2", "Next time");
      const list = carme.add(card, "ul");
      for (const advice of job.advice) carme.add(list, "li", advice.text);
    }
    for (const note of answer.notes) carme.add(box, "p", note, "soft");
    if (job.gpu_plot) plot("gpu", "GPU utilisation", "share", job.gpu_plot, job.started_at);
    if (job.power_plot) plot("power", "Charged power", "W", job.power_plot, job.started_at);
    if (job.network_plot) plot("network", "Network", "bytes/s", job.network_plot, job.started_at);
    if (!job.ended_at) setTimeout(() => load().catch(() => null), 15000);
  }
  load().catch((error) => carme.problem(box, error));
})();
