// My jobs: the jobs of the last month and what they used.
"use strict";
(function () {
  const { field } = carme;
  const box = field("jobs");
  const more = field("more");
  let rows = null;
  let next = "0";
  async function load() {
    const page = await carme.ask("/jobs?limit=25&cursor=" + next);
    if (!rows) {
      box.replaceChildren();
      if (page.problem) carme.add(box, "p", page.problem, "problem");
      if (!page.items.length) { carme.add(box, "p", "No jobs in the last month.", "soft"); return; }
      rows = carme.table(box, ["job", "name", "user", "state", "GPUs", "ran", "GPU busy", "charged energy"]);
    }
    for (const job of page.items) {
      const row = carme.add(rows, "tr");
      const link = carme.add(carme.add(row, "td"), "a", job.label || job.id);
      link.href = carme.prefix + "/jobs/" + job.id;
      const held = job.measured && job.measured.gpu_held_seconds;
      const busy = held ? Math.round(100 * Math.max(0, 1 - (job.measured.gpu_idle_seconds || 0) / held)) + " %" : "";
      const joules = carme.chargedJoules(job);
      for (const text of [job.name, job.user, job.state.toLowerCase(), carme.gpuText(job), carme.duration(job.elapsed_seconds), busy, joules ? carme.joules(joules) : ""]) carme.add(row, "td", text);
    }
    next = page.next;
    more.hidden = !next;
    field("more-problem").replaceChildren();
  }
  carme.coverage(field("coverage")).catch(() => null);
  // The rows that are shown already stay.
  more.addEventListener("click", () => load().catch((error) => carme.problem(field("more-problem"), error)));
  load().catch((error) => carme.problem(box, error));
})();
