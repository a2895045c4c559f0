// My jobs: the jobs of the last month and what they used.
"use strict";
(function () {
  const box = document.getElementById("jobs");
  const more = document.getElementById("more");
  let rows = null;
  let next = "0";
  async function load() {
    const page = await carme.ask("/jobs?limit=25&cursor=" + next);
    if (!rows) {
      box.replaceChildren();
      if (page.problem) carme.add(box, "p", page.problem, "problem");
      if (!page.items.length) { carme.add(box, "p", "No jobs in the last month.", "soft"); return; }
      const table = carme.add(box, "table");
      const head = carme.add(carme.add(table, "thead"), "tr");
      for (const title of ["job", "name", "user", "state", "GPUs", "ran", "GPU busy", "energy"]) carme.add(head, "th", title).scope = "col";
      rows = carme.add(table, "tbody");
    }
    for (const job of page.items) {
      const row = carme.add(rows, "tr");
      const link = carme.add(carme.add(row, "td"), "a", job.label || job.id);
      link.href = carme.prefix + "/jobs/" + job.id;
      const gpus = Object.entries(job.asked.gpus).map(([kind, count]) => count + " " + kind).join(", ");
      const held = job.measured && job.measured.gpu_held_seconds;
      const busy = held ? Math.round(100 * Math.max(0, 1 - (job.measured.gpu_idle_seconds || 0) / held)) + " %" : "";
      const joules = job.measured ? Object.values(job.measured.joules).reduce((a, b) => a + b, 0) : 0;
      for (const text of [job.name, job.user, job.state.toLowerCase(), gpus, carme.duration(job.elapsed_seconds), busy, joules ? carme.joules(joules) : ""]) carme.add(row, "td", text);
    }
    next = page.next;
    more.hidden = !next;
  }
  carme.coverage(document.getElementById("coverage")).catch(() => null);
  more.addEventListener("click", () => load().catch((error) => carme.problem(box, error)));
  load().catch((error) => carme.problem(box, error));
})();
