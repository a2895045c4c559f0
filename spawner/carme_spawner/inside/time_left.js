// The time left, in JupyterLab's top bar, with a warning before the end and a button for more time;
// and what the hub has to say about GPUs that do nothing.
// A prebuilt extension written by hand: it takes what JupyterLab shares and needs no build.
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

  function words(seconds) {
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

    let endsAt = null, warnSeconds = 600, behind = 0, mayAsk = false, warnedFor = null, said = "";
    // Notifications are there once JupyterLab has opened what it wanted to.
    const notify = (message, type, autoClose) => app.restored
      .then(() => app.commands.execute("apputils:notify", { message, type, options: { autoClose } }))
      .catch(() => window.alert(message));

    // A session whose GPUs do nothing, whether it is ended for that or only told so.
    function showWarning(warning) {
      idle.hidden = !warning;
      idle.textContent = warning ? "GPUs idle" : "";
      idle.title = warning;
      idle.style.cssText = warning ? ALARM : "";
      if (warning && warning !== said) notify(warning, "warning", false);
      said = warning;
    }

    function take(told) {
      if ("warning" in told) showWarning(told.warning);
      if (!told.ends_at) return;
      endsAt = told.ends_at;
      behind = told.now - Date.now() / 1000;  // the browser's clock may be off
      if ("warn_seconds" in told) { warnSeconds = told.warn_seconds; mayAsk = told.may_extend; }
      show();
    }

    function show() {
      if (!endsAt) return;
      const left = endsAt - Date.now() / 1000 - behind;
      const near = left < warnSeconds;
      text.textContent = words(left);
      text.title = "This session ends " + new Date(1000 * (endsAt - behind)).toLocaleString();
      text.style.cssText = near ? ALARM : "";
      button.hidden = !mayAsk;
      if (near && warnedFor !== endsAt) {
        warnedFor = endsAt;
        notify("This session ends in " + words(left).replace(" left", "") + ". Save your work" + (mayAsk ? ", or ask for more time above." : "."), "warning", false);
      }
    }

    async function call(init) {
      const answer = await ServerConnection.makeRequest(settings.baseUrl + "carme/time", init, settings);
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.message || "HTTP " + answer.status);
      return told;
    }

    async function ask() {
      try { take(await call({})); } catch (error) { console.warn("carme: no time left:", error.message); }
    }

    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        take(await call({ method: "POST", body: JSON.stringify({ minutes: 60 }) }));
        notify("The session has one more hour.", "success", 5000);
      } catch (error) {
        notify("No more time: " + error.message, "error", 15000);
      }
      button.disabled = false;
    });

    await ask();
    setInterval(ask, 1000 * ASK_SECONDS);
    setInterval(show, 5000);
  }

  const plugin = { id: "carme-session:time-left", description: "Shows how much time the session has left.", autoStart: true, activate };
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["carme-session"] = {
    init(given) { scope = given; },
    get() { return Promise.resolve(() => ({ __esModule: true, default: plugin })); },
  };
})();
