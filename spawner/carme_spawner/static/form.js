// Live updates of the form: what is free now, and when this request would start.
(function () {
  "use strict";
  const { add, count, clock, duration, startTime } = carmeElements;
  const api = window.jhdata.base_url + "api/carme/";
  const form = document.getElementById("spawn_form");
  const field = (name) => document.getElementById(name);
  const sentFields = JSON.parse(field("carme-spawn").dataset.fields).outlook;
  const maxAgeSeconds = Number(field("carme-spawn").dataset.maxAgeSeconds);
  let figures = null;
  let receivedAt = 0;
  let lastRequest = 0;
  let soonTimer = null;

  async function ask(path) {
    const response = await fetch(api + path, { headers: { Accept: "application/json", "X-XSRFToken": window.jhdata.xsrf_token } });
    const body = await response.json();
    if (!response.ok) throw Object.assign(new Error(body.message || "HTTP " + response.status), { errors: body.errors });
    return body;
  }

  function showCluster() {
    const box = field("cluster");
    box.replaceChildren();
    const partition = figures.partitions.find((p) => p.name === field("partition").value);
    if (!partition) return;
    add(box, "h2", "Free in " + partition.name, "h6");
    for (const gpu of partition.gpus) {
      const row = add(box, "div", "", "mb-2");
      const line = add(row, "div", "", "d-flex justify-content-between small");
      add(line, "span", gpu.type || "GPUs");
      add(line, "span", gpu.free + " of " + gpu.total + " free" + (gpu.free ? ", up to " + gpu.block + " on one node" : ""));
      const bar = add(row, "div", "", "progress");
      bar.style.height = "6px";
      bar.setAttribute("role", "img");
      bar.setAttribute("aria-label", gpu.free + " of " + gpu.total + " free");
      add(bar, "div", "", "progress-bar").style.width = (100 * gpu.free) / gpu.total + "%";
    }
    const list = add(box, "ul", "", "list-unstyled small mb-0");
    add(list, "li", partition.cpus_free + " of " + partition.cpus_total + " cores free");
    add(list, "li", partition.memory_free_gb + " of " + partition.memory_total_gb + " GiB of memory free");
    const waiting = partition.waiting;
    add(list, "li", waiting ? (waiting === 1 ? "1 job waits" : waiting + " jobs wait") : "No job waits");
    const down = partition.nodes_down;
    if (down.length) {
      const names = down.slice(0, 6).join(", ") + (down.length > 6 ? " and " + (down.length - 6) + " more" : "");
      add(list, "li", down.length + " of " + count(partition.nodes_total, "node") + " not available: " + names, "text-danger");
    }
    if (!partition.up) add(list, "li", "This partition takes no jobs now", "text-danger");
    for (const maintenance of figures.maintenance) {
      if (!maintenance.partitions.includes(partition.name)) continue;
      const span = 1000 * maintenance.starts_at < Date.now()
        ? " until " + (maintenance.ends_at ? clock(maintenance.ends_at) : "further notice") : " from " + clock(maintenance.starts_at);
      add(list, "li", "Maintenance of " + count(maintenance.nodes, "node") + span, "text-danger");
    }
    add(list, "li", "", figures.controller === "away" ? "text-danger" : "text-body-secondary").id = "cluster-age";
    showAge();
  }

  // The age goes on while no new figures come.
  function showAge() {
    const line = field("cluster-age");
    if (!line) return;
    const age = duration(Math.round(figures.age_seconds + (Date.now() - receivedAt) / 1000)) + " ago";
    line.textContent = figures.controller === "away" ? "Slurm does not answer; updated " + age : "Updated " + age;
  }

  function showOutlook(text, css, smaller) {
    const box = field("outlook");
    box.replaceChildren();
    add(box, "span", text, css);
    if (!smaller) return;
    const label = count(smaller.gpus, "GPU") + ", " + count(smaller.cpus, "core") + ", " + smaller.memory_gb + " GiB " + (smaller.nodes ? "on one node " : "") + "would start now";
    const button = add(box, "button", label, "btn btn-sm btn-outline-secondary d-block mt-2");
    button.type = "button";
    button.addEventListener("click", () => fill(smaller));
  }

  async function refreshOutlook() {
    const shown = sentFields.filter((name) => field(name) && field(name).value);
    const query = new URLSearchParams(shown.map((name) => [name, field(name).value]));
    const requestNumber = ++lastRequest;
    try {
      const outlook = await ask("outlook?" + query);
      if (requestNumber !== lastRequest) return; // the fields changed meanwhile
      showProblems(outlook.errors || []);
      if (outlook.starts_now) showOutlook("This request can start now.", "text-success fw-semibold");
      else if (outlook.held) showOutlook("This request would wait. " + outlook.held, "", outlook.smaller);
      else if (outlook.refused) showOutlook("This would be refused. " + outlook.refused, "text-danger");
      else if (outlook.expected_at) showOutlook("Not now. Slurm expects it to start " + startTime(outlook.expected_at) + "; Slurm's estimate may change.", "", outlook.smaller);
      else showOutlook("This request would wait.", "", outlook.smaller);
      if (outlook.again) later(1000);
    } catch (error) {
      if (requestNumber !== lastRequest) return;
      showProblems(error.errors || []);
      showOutlook(error.message, "text-body-secondary");
    }
  }

  // Problems are shown at their fields while the user chooses, not only after "Start".
  function showProblems(errors) {
    for (const message of form.querySelectorAll(".carme-live")) {
      const input = field(message.dataset.field);
      input.classList.remove("is-invalid");
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
      message.remove();
    }
    for (const error of errors) {
      const input = error.field && field(error.field);
      if (!input || !form.contains(input)) continue;
      field(error.field + "-problem")?.remove(); // the hub's message about older values
      const text = add(input.parentElement, "div", error.message, "invalid-feedback d-block carme-live");
      text.id = error.field + "-problem";
      text.dataset.field = error.field;
      input.classList.add("is-invalid");
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", text.id);
    }
  }

  async function refreshCluster() {
    try {
      const previous = figures;
      figures = await ask("cluster");
      receivedAt = Date.now();
      showCluster();
      // The hub answers with the last figures and reads new ones meanwhile: ask again soon.
      clearTimeout(soonTimer);
      if (figures.age_seconds > maxAgeSeconds + 1 && figures.controller === "up") soonTimer = setTimeout(refreshCluster, 1500);
      // The outlook must match the panel beside it.
      if (previous && content(previous) !== content(figures)) later(0);
    } catch (error) {
      field("cluster").textContent = "The free resources cannot be read now: " + error.message;
    }
  }

  function content(figures) {
    return JSON.stringify({ ...figures, age_seconds: 0 });
  }

  function fill(values) {
    for (const [name, value] of Object.entries(values)) if (field(name)) field(name).value = value;
    changed();
  }

  function preset(values) {
    if (values.partition) field("partition").value = values.partition;
    // For a preset with GPUs, take the first partition that has some.
    const current = figures?.partitions.find((p) => p.name === field("partition").value);
    if (values.gpus && current && !current.gpus.length) {
      const gpuPartition = figures.partitions.find((p) => p.gpus.length);
      if (gpuPartition) field("partition").value = gpuPartition.name;
    }
    const fields = Object.assign({}, values);
    if (fields.whole_node && figures) {
      const partition = figures.partitions.find((p) => p.name === field("partition").value);
      Object.assign(fields, partition && partition.largest);
      field("gpu_type").value = "";
    }
    delete fields.whole_node;
    fill(fields);
  }

  function updateChoices() {
    const offered = (field("partition").selectedOptions[0]?.dataset.types || "").split(" ");
    for (const option of field("gpu_type").options) option.hidden = Boolean(option.value) && !offered.includes(option.value);
    if (field("gpu_type").selectedOptions[0]?.hidden) field("gpu_type").value = "";
    field("image-description").textContent = field("image").selectedOptions[0]?.dataset.description || "";
    updateApplications();
    updateQos();
  }

  // The QoS of the chosen account in the chosen partition; hidden if there is only one.
  function updateQos() {
    const row = field("qos-row");
    if (!row) return;
    const account = field("account")?.value || row.dataset.account;
    const associations = JSON.parse(row.dataset.associations).filter((item) => item.account === account);
    const association = associations.find((item) => item.partition === field("partition").value) || associations.find((item) => !item.partition);
    const select = field("qos");
    const previous = select.value || select.dataset.value;
    const chosen = association?.qos.includes(previous) ? previous : association?.default_qos;
    select.replaceChildren();
    for (const name of association ? association.qos : []) {
      const option = add(select, "option", name + (name === association.default_qos ? " (default)" : ""));
      option.value = name;
      option.selected = name === chosen;
    }
    row.hidden = select.options.length < 2;
    field("qos-limits").textContent = JSON.parse(row.dataset.limits)[select.value] || "";
  }

  // The applications of the chosen image; hidden if there is only one.
  function updateApplications() {
    const image = field("image").selectedOptions[0];
    const names = JSON.parse(image?.dataset.applications || "[]");
    const titles = JSON.parse(image?.dataset.titles || "[]");
    const select = field("application");
    const chosen = select.value || select.dataset.value;
    select.replaceChildren();
    names.forEach((name, index) => {
      const option = add(select, "option", titles[index]);
      option.value = name;
      option.selected = name === chosen;
    });
    field("application-row").hidden = names.length < 2;
  }

  let timer = null;
  function changed() {
    lastRequest++; // an answer under way is about older values
    showProblems([]); // at once: later it would move the button under the pointer
    updateChoices();
    if (figures) showCluster();
    later(300);
  }

  function later(milliseconds) {
    clearTimeout(timer);
    timer = setTimeout(refreshOutlook, milliseconds);
  }

  for (const button of document.querySelectorAll("[data-preset]")) {
    button.addEventListener("click", () => preset(JSON.parse(button.dataset.preset)));
  }
  form.addEventListener("input", changed);
  form.addEventListener("submit", () => {
    const button = form.querySelector("button[type=submit]");
    button.disabled = true;
    button.textContent = "Starting…";
  });
  updateChoices();
  refreshCluster().then(refreshOutlook);
  setInterval(showAge, 1000);
  setInterval(() => { if (!document.hidden) refreshCluster(); }, 1000 * maxAgeSeconds);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refreshCluster(); });
  setInterval(() => { if (!document.hidden) refreshOutlook(); }, 20000);
})();
