// The home page: the time that sessions have left, "Start again" and "One more hour".
(function () {
  "use strict";
  function showTimeLeft(box) {
    const seconds = Number(box.dataset.carmeEnds) - Date.now() / 1000;
    const minutes = Math.max(0, Math.floor(seconds / 60));
    const text = minutes >= 60 ? Math.floor(minutes / 60) + " h " + (minutes % 60) + " min" : minutes + " min";
    box.querySelector(".carme-left").textContent = text + " left";
    const endsSoon = seconds < 60 * Number(box.dataset.carmeWarnMinutes);
    box.classList.toggle("alert-warning", endsSoon);
    box.classList.toggle("alert-secondary", !endsSoon);
  }
  const boxes = document.querySelectorAll("[data-carme-ends]");
  const update = () => boxes.forEach(showTimeLeft);
  update();
  setInterval(update, 10000);
  // Without options the hub takes those of the last session. If it refuses them, the link's own
  // target, the form, shows why.
  for (const link of document.querySelectorAll("[data-carme-again]")) {
    link.addEventListener("click", async (event) => {
      event.preventDefault();
      link.classList.add("disabled");
      const response = await fetch(window.jhdata.base_url + "api/" + link.dataset.carmeAgain, {
        method: "POST",
        headers: { "X-XSRFToken": window.jhdata.xsrf_token },
      });
      window.location = response.ok ? link.dataset.carmeWait : link.href;
    });
  }
  for (const button of document.querySelectorAll("[data-carme-extend]")) {
    button.addEventListener("click", async () => {
      button.disabled = true;
      const box = button.closest("[data-carme-ends]");
      const response = await fetch(window.jhdata.base_url + "api/carme/extend", {
        method: "POST",
        headers: { "X-XSRFToken": window.jhdata.xsrf_token, "Content-Type": "application/json" },
        body: JSON.stringify({ server: button.dataset.carmeExtend, minutes: 60 }),
      });
      const body = await response.json();
      if (response.ok) {
        box.dataset.carmeEnds = body.ends_at;
        button.disabled = false;
        update();
      } else {
        button.replaceWith(document.createTextNode(body.message));
      }
    });
  }
})();
