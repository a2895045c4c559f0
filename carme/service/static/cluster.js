// Cluster: what is free, updated every five seconds while the page is visible.
"use strict";
(function () {
  const { field } = carme;
  function bar(box, label, free, total) {
    carme.add(box, "div", label + ": " + free + " of " + total + " free", "small");
    const barBox = carme.add(box, "div", null, "bar");
    barBox.setAttribute("role", "img");
    barBox.setAttribute("aria-label", label + ": " + free + " of " + total + " free");
    carme.add(barBox, "span").style.width = (total ? (100 * free) / total : 0) + "%";
  }
  async function refresh() {
    try {
      const cluster = await carme.ask("/cluster");
      const box = field("partitions");
      box.replaceChildren();
      for (const partition of cluster.partitions) {
        const card = carme.add(box, "section", null, "card");
        carme.add(card, "h2", partition.name + (partition.up ? "" : " (accepts no jobs)"));
        for (const gpu of partition.gpus) bar(card, gpu.type || "GPUs", gpu.free, gpu.total);
        bar(card, "cores", partition.cpus_free, partition.cpus_total);
        carme.add(card, "p", partition.running + (partition.running === 1 ? " job runs, " : " jobs run, ") + partition.waiting + " wait" + (partition.max_seconds ? "; up to " + carme.duration(partition.max_seconds) : ""), "small soft");
      }
      const age = Math.max(0, Math.round(Date.now() / 1000 - cluster.taken_at));
      field("age").textContent = (cluster.controller === "away" ? "Slurm does not answer; " : "") + "updated " + age + " s ago; " + cluster.nodes_open + " nodes open, " + cluster.nodes_closed + " closed";
    } catch (error) {
      carme.problem(field("age"), error);
    }
  }
  async function showHardware() {
    const hardware = await carme.ask("/hardware");
    const rows = carme.table(field("hardware"), ["name", "", "in this cluster", "memory", "idle", "limit"]);
    hardware.items.sort((a, b) => b.here.length - a.here.length);
    for (const item of hardware.items) {
      const row = carme.add(rows, "tr");
      for (const text of [item.name, item.title, item.here.join(", "), carme.bytes(item.memory_bytes), carme.watts(item.idle_watts), carme.watts(item.limit_watts)]) carme.add(row, "td", text);
    }
    for (const note of hardware.notes) carme.add(field("hardware"), "p", note, "soft small");
  }
  refresh();
  showHardware().catch((error) => carme.problem(field("hardware"), error));
  setInterval(() => { if (!document.hidden) refresh(); }, 5000);
})();
