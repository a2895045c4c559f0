// Elements and numbers with units, for the pages of hub and service.
// Text is set with textContent: names come from Slurm and from users, and are not HTML.
"use strict";
const carmeElements = (function () {
  function add(parent, tag, text, css) {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    if (css) node.className = css;
    parent.appendChild(node);
    return node;
  }

  // A table with these column titles; returns its body, to which rows are added.
  function table(parent, titles, css) {
    const element = add(parent, "table");
    const head = add(add(element, "thead"), "tr");
    for (const title of titles) add(head, "th", title, css && css(title)).scope = "col";
    return add(element, "tbody");
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
  // Both ends have the same unit, so it is written once.
  function interval(figure, like = figure.value) {
    const [low] = amount(figure.low, figure.unit, like).split(" ");
    return low + " to " + amount(figure.high, figure.unit, like);
  }
  const bytes = (value) => (value < 2 ** 20 ? digits(value / 1024) + " KiB" : value < 2 ** 30 ? digits(value / 2 ** 20) + " MiB" : digits(value / 2 ** 30) + " GiB");
  const count = (number, noun) => number + " " + noun + (number === 1 ? "" : "s");

  function clock(seconds) {
    const moment = new Date(1000 * seconds);
    const short = { hour: "2-digit", minute: "2-digit" };
    if (1000 * seconds - Date.now() < 20 * 3600 * 1000) return moment.toLocaleTimeString([], short);
    return moment.toLocaleString([], { weekday: "short", day: "numeric", month: "short", ...short });
  }
  function startTime(seconds) {
    const wait = seconds - Date.now() / 1000;
    return clock(seconds) + (wait < 5400 ? " (in about " + Math.max(1, Math.round(wait / 60)) + " min)" : "");
  }

  return { add, table, count, clock, startTime, digits, duration, joules, watts, grams, amount, interval, bytes };
})();
