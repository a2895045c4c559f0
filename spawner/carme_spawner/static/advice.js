// Time and energy of the declared workload with this request. The form works without it: after a
// second there is no advice.
(function () {
  "use strict";
  const { add, amount, count, interval, startTime } = carmeElements;
  const field = (name) => document.getElementById(name);
  const form = document.getElementById("spawn_form");
  const box = field("advice");
  const sentFields = JSON.parse(field("carme-spawn").dataset.fields).advice;

  function row(list, label, figure) {
    const item = add(list, "li");
    add(item, "span", label + " ");
    add(item, "strong", amount(figure.value, figure.unit));
    add(item, "span", " (" + interval(figure) + ")", "text-body-secondary");
  }

  function show(advice) {
    box.replaceChildren();
    const list = add(box, "ul", "", "list-unstyled mb-1");
    const { starts_now: startsNow, expected_at: expectedAt, words } = advice.wait;
    const wait = add(list, "li");
    add(wait, "span", "Wait ");
    add(wait, "strong", startsNow ? "none" : expectedAt ? "until " + startTime(expectedAt) : "not known");
    add(wait, "span", " (" + words.replace(/\.$/, "") + ")", "text-body-secondary");
    const prediction = advice.prediction;
    if (prediction) {
      row(list, "Time", prediction.time);
      row(list, "GPU energy", prediction.gpu_energy);
      row(list, "Charged energy", prediction.node_energy);
      row(list, "Emissions", prediction.emissions);
      if (prediction.cost) row(list, "Cost", prediction.cost);
      if (!prediction.memory.fits) add(box, "div", "Does not fit: " + prediction.memory.why_not, "text-danger");
      add(box, "div", prediction.provenance.words, "text-body-secondary");
    }
    for (const note of advice.notes) add(box, "div", note, "text-body-secondary");
    for (const other of advice.suggestions) {
      const part = add(box, "div", "", "mt-2");
      add(part, "span", other.why[0].toUpperCase() + other.why.slice(1) + ". ");
      const changes = [];
      // A site with sessions on one node only has no field for nodes.
      const each = field("nodes") && Number(field("nodes").value) > 1 ? " on each node" : "";
      if (other.gpus !== null) changes.push(count(other.gpus, "GPU") + each);
      if (other.gpu_type !== null) changes.push(other.gpu_type);
      if (other.hours !== null) changes.push(count(other.hours, "hour"));
      if (!changes.length) continue;
      const button = add(part, "button", "Use " + changes.join(", "), "btn btn-sm btn-outline-secondary");
      button.type = "button";
      button.addEventListener("click", () => {
        for (const name of ["gpus", "gpu_type", "hours"]) if (other[name] !== null) field(name).value = other[name];
        form.dispatchEvent(new Event("input", { bubbles: true }));
      });
    }
  }

  let timer = null;
  let running = null;
  async function refresh() {
    if (!field("workload").value.trim()) {
      box.textContent = "Name a workload to see its time and energy here.";
      box.className = "mt-2 small text-body-secondary";
      return;
    }
    box.className = "mt-2 small";
    if (running) running.abort();
    const controller = (running = new AbortController());
    const limit = setTimeout(() => controller.abort(), 1000);
    const query = new URLSearchParams(sentFields.filter(field).map((name) => [name, field(name).value]));
    try {
      const response = await fetch(window.jhdata.base_url + "api/carme/advice?" + query, {
        signal: controller.signal, headers: { Accept: "application/json", "X-XSRFToken": window.jhdata.xsrf_token },
      });
      const body = await response.json();
      if (!response.ok) throw new Error(body.message || "no advice now");
      show(body);
    } catch (error) {
      if (controller !== running) return;
      box.textContent = error.name === "AbortError" ? "No advice now: the prediction service is slow." : error.message;
    } finally {
      clearTimeout(limit);
    }
  }
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 400);
  });
  refresh();
})();
