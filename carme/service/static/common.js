// What all pages share: asking the API, and writing numbers for people.
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

  function add(parent, tag, text, css) {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    if (css) node.className = css;
    parent.appendChild(node);
    return node;
  }

  function digits(value) {
    if (value === 0) return "0";
    if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(3)));
  }
  // `like` chooses the unit: both ends of an interval are read beside their figure.
  function duration(seconds, like = seconds) {
    if (like < 60) return digits(seconds) + " s";
    if (like < 3600) return digits(seconds / 60) + " min";
    if (like < 48 * 3600) return digits(seconds / 3600) + " h";
    return digits(seconds / 86400) + " d";
  }
  function joules(value, like = value) {
    if (like < 1000) return digits(value) + " J";
    if (like < 360000) return digits(value / 1000) + " kJ";
    if (like < 3.6e9) return digits(value / 3.6e6) + " kWh";
    return digits(value / 3.6e9) + " MWh";
  }
  const watts = (value, like = value) => (like < 1000 ? digits(value) + " W" : digits(value / 1000) + " kW");
  function grams(value, like = value) {
    if (like < 1000) return digits(value) + " g CO₂e";
    return like < 1e6 ? digits(value / 1000) + " kg CO₂e" : digits(value / 1e6) + " t CO₂e";
  }
  const writers = { s: duration, J: joules, W: watts, "g CO2e": grams };
  const amount = (value, unit, like = value) => (writers[unit] ? writers[unit](value, like) : digits(value) + " " + unit);
  const interval = (figure) => amount(figure.low, figure.unit, figure.value) + " to " + amount(figure.high, figure.unit, figure.value);
  const bytes = (value) => (value < 2 ** 20 ? digits(value / 1024) + " KiB" : value < 2 ** 30 ? digits(value / 2 ** 20) + " MiB" : digits(value / 2 ** 30) + " GiB");

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
