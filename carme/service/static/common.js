// Shared by all pages of the service: requests to the API, and plots. Needs elements.js.
"use strict";
const carme = (function () {
  const meta = (name) => document.querySelector(`meta[name=${name}]`).content;
  const prefix = meta("prefix");
  const api = prefix + "/api/v1";

  async function ask(path, body, method) {
    const how = { headers: { Accept: "application/json", "X-CSRF-Token": meta("csrf") } };
    if (body !== undefined) {
      how.method = "POST";
      how.headers["Content-Type"] = "application/json";
      how.body = JSON.stringify(body);
    }
    if (method) how.method = method;
    const answer = await fetch(api + path, how);
    if (answer.status === 401) { location.reload(); throw new Error("your session is over"); }
    if (answer.status === 204) return null;
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.detail + (found.hint ? " (" + found.hint + ")" : ""));
    return found;
  }

  const { add, digits, duration, joules, watts, grams, amount, interval, bytes } = carmeElements;

  // How often the intervals held here, in counts; silent when nothing has been judged yet.
  async function coverage(box) {
    const found = await ask("/coverage");
    const words = { session: "sessions", job: "jobs" };
    for (const item of found.items) {
      if (!item.time_judged) continue;
      const share = (part, all) => part + " of " + all + " (" + Math.round((100 * part) / all) + " %)";
      let text = "Prediction accuracy, " + words[item.kind] + " predicted from " + (item.source === "data sheet" ? "data sheets" : item.source) + ": time within the interval in " + share(item.time_within, item.time_judged);
      if (item.energy_judged) text += ", GPU energy in " + share(item.energy_within, item.energy_judged);
      add(box, "p", text + ". Target: " + Math.round(100 * found.meant) + " %.", "soft small");
    }
  }

  function problem(box, error) {
    box.replaceChildren();
    add(box, "p", error.message, "problem").setAttribute("role", "alert");
  }

  // Plotly's colours follow the system's choice of light or dark.
  function layout(more) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
    return Object.assign({
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--text") },
      margin: { l: 60, r: 20, t: 20, b: 50 }, hoverlabel: { align: "left" },
    }, more, { xaxis: Object.assign({}, axis, (more || {}).xaxis), yaxis: Object.assign({}, axis, (more || {}).yaxis) });
  }
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  return { ask, add, coverage, amount, interval, digits, duration, joules, watts, grams, bytes, problem, layout, colour, prefix, api };
})();
