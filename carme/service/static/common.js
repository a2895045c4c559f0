// Shared by all pages of the service: requests to the API, and plots. Needs elements.js.
"use strict";
const carme = (function () {
  const meta = (name) => document.querySelector(`meta[name=${name}]`).content;
  const prefix = meta("prefix");
  const api = prefix + "/api/v1";

  // The API's answer. `body` is sent by POST: a file as it is, anything else as JSON.
  async function ask(path, body, method) {
    const options = { method: method || (body === undefined ? "GET" : "POST"), headers: { Accept: "application/json", "X-CSRF-Token": meta("csrf") } };
    if (body !== undefined) {
      const isFile = body instanceof Blob;
      options.headers["Content-Type"] = isFile ? "application/octet-stream" : "application/json";
      options.body = isFile ? body : JSON.stringify(body);
    }
    const response = await fetch(api + path, options);
    if (response.status === 401) { location.reload(); throw new Error("your session has ended"); }
    if (response.status === 204) return null;
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.detail + (answer.hint ? " (" + answer.hint + ")" : ""));
    return answer;
  }

  const { add, table, count, digits, duration, joules, watts, grams, amount, interval, bytes } = carmeElements;
  const field = (name) => document.getElementById(name);

  // The GPU types of each partition of this cluster, in the order of the partitions.
  async function clusterGpus() {
    const { partitions } = await ask("/cluster");
    return partitions.flatMap((partition) => partition.gpus.map((gpu) => ({ partition: partition.name, type: gpu.type, total: gpu.total })));
  }
  // The GPUs that a job requested, such as `4 a100`.
  const gpuText = (job) => Object.entries(job.asked.gpus).map(([kind, count]) => count + " " + kind).join(", ");
  // The charged energy of a job in joules, 0 if none was measured.
  const chargedJoules = (job) => (job.measured ? Object.values(job.measured.joules).reduce((a, b) => a + b, 0) : 0);

  // How often measurements lay within their interval, in counts; nothing before the first one.
  async function coverage(box) {
    const answer = await ask("/coverage");
    const plurals = { session: "sessions", job: "jobs" };
    for (const item of answer.items) {
      if (!item.time_judged) continue;
      const share = (part, all) => part + " of " + all + " (" + Math.round((100 * part) / all) + " %)";
      let text = "Prediction accuracy, " + plurals[item.kind] + " predicted from " + (item.source === "data sheet" ? "data sheets" : item.source) + ": time within the interval in " + share(item.time_within, item.time_judged);
      if (item.energy_judged) text += ", GPU energy in " + share(item.energy_within, item.energy_judged);
      add(box, "p", text + ". Target: " + Math.round(100 * answer.meant) + " %.", "soft small");
    }
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function problem(box, error) {
    box.replaceChildren();
    add(box, "p", error.message, "problem").setAttribute("role", "alert");
  }

  // Plotly's colours follow the system's light or dark theme.
  function layout(options) {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
    return Object.assign({
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--text") },
      margin: { l: 60, r: 20, t: 20, b: 50 }, hoverlabel: { align: "left" },
    }, options, { xaxis: Object.assign({}, axis, (options || {}).xaxis), yaxis: Object.assign({}, axis, (options || {}).yaxis) });
  }

  async function logOut() {
    const response = await fetch(prefix + "/logout", { method: "POST", headers: { "X-CSRF-Token": meta("csrf") } });
    if (response.ok || response.status === 401) location.assign(meta("hub") + "/home");
  }
  field("logout")?.addEventListener("click", logOut);
  for (const box of document.querySelectorAll(".origin")) box.textContent = location.origin;

  return { ask, add, table, count, field, clusterGpus, gpuText, chargedJoules, coverage, amount, interval, digits, duration, joules, watts, grams, bytes, problem, layout, colour, prefix, api };
})();
