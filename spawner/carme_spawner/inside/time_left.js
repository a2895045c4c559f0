// The time left, in JupyterLab's top bar, with a warning before the end and a button for more time;
// and the hub's warning for idle GPUs.
// A prebuilt extension written by hand: it uses the packages that JupyterLab shares, without a build.
(function () {
  "use strict";
  const ASK_SECONDS = 60;
  const ALARM = "background:var(--jp-warn-color0,#b45309);color:#fff;padding:2px 8px;border-radius:3px;font-weight:600";
  let scope = {};

  async function shared(name) {
    const versions = Object.values(scope[name] || {});
    if (!versions.length) throw new Error("JupyterLab does not share " + name);
    return (await versions[0].get())();
  }

  function timeLeft(seconds) {
    const minutes = Math.max(0, Math.floor(seconds / 60));
    if (minutes >= 60) return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min left";
    return minutes > 0 ? minutes + " min left" : "less than a minute left";
  }

  async function activate(app) {
    const { Widget } = await shared("@lumino/widgets");
    const { ServerConnection } = await shared("@jupyterlab/services");
    const settings = app.serviceManager.serverSettings;
    const node = document.createElement("div");
    node.setAttribute("role", "status");
    node.style.cssText = "display:flex;align-items:center;gap:8px;padding:0 10px;color:var(--jp-ui-font-color1);font-size:var(--jp-ui-font-size1)";
    const idle = node.appendChild(document.createElement("span"));
    idle.id = "carme-idle";
    idle.hidden = true;
    const text = node.appendChild(document.createElement("span"));
    const button = node.appendChild(document.createElement("button"));
    button.textContent = "One more hour";
    button.className = "jp-mod-styled jp-mod-accept";
    button.style.cssText = "height:22px;line-height:22px;padding:0 8px;margin:0";
    button.hidden = true;
    const widget = new Widget({ node });
    widget.id = "carme-time-left";
    app.shell.add(widget, "top", { rank: 950 });

    let endsAt = null, warnSeconds = 600, clockOffset = 0, mayExtend = false, warnedFor = null, lastWarning = "";
    // Notifications work once JupyterLab has restored its layout.
    const notify = (message, type, autoClose) => app.restored
      .then(() => app.commands.execute("apputils:notify", { message, type, options: { autoClose } }))
      .catch(() => window.alert(message));

    // The warning of a session whose GPUs are idle, whether it will be ended for that or not.
    function showWarning(warning) {
      idle.hidden = !warning;
      idle.textContent = warning ? "GPUs idle" : "";
      idle.title = warning;
      idle.style.cssText = warning ? ALARM : "";
      if (warning && warning !== lastWarning) notify(warning, "warning", false);
      lastWarning = warning;
    }

    function update(session) {
      if ("warning" in session) showWarning(session.warning);
      if (!session.ends_at) return;
      endsAt = session.ends_at;
      clockOffset = session.now - Date.now() / 1000;  // the browser's clock may be off
      if ("warn_seconds" in session) { warnSeconds = session.warn_seconds; mayExtend = session.may_extend; }
      show();
    }

    function show() {
      if (!endsAt) return;
      const secondsLeft = endsAt - Date.now() / 1000 - clockOffset;
      const endsSoon = secondsLeft < warnSeconds;
      text.textContent = timeLeft(secondsLeft);
      text.title = "This session ends " + new Date(1000 * (endsAt - clockOffset)).toLocaleString();
      text.style.cssText = endsSoon ? ALARM : "";
      button.hidden = !mayExtend;
      if (endsSoon && warnedFor !== endsAt) {
        warnedFor = endsAt;
        notify("This session ends in " + timeLeft(secondsLeft).replace(" left", "") + ". Save your work" + (mayExtend ? ", or ask for more time above." : "."), "warning", false);
      }
    }

    async function call(init) {
      const response = await ServerConnection.makeRequest(settings.baseUrl + "carme/time", init, settings);
      const body = await response.json();
      if (!response.ok) throw new Error(body.message || "HTTP " + response.status);
      return body;
    }

    async function refresh() {
      try { update(await call({})); } catch (error) { console.warn("carme: the time left cannot be read:", error.message); }
    }

    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        update(await call({ method: "POST", body: JSON.stringify({ minutes: 60 }) }));
        notify("The session has one more hour.", "success", 5000);
      } catch (error) {
        notify("No more time: " + error.message, "error", 15000);
      }
      button.disabled = false;
    });

    await refresh();
    setInterval(refresh, 1000 * ASK_SECONDS);
    setInterval(show, 5000);
  }

  const plugin = { id: "carme-session:time-left", description: "Shows how much time the session has left.", autoStart: true, activate };
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["carme-session"] = {
    init(sharedScope) { scope = sharedScope; },
    get() { return Promise.resolve(() => ({ __esModule: true, default: plugin })); },
  };
})();
