/* What Dash calls in the browser (see app.py), and what happens there without it: playing, links and downloads. */
(function () {
  "use strict";
  const explorer = (window.explorer = window.explorer || {});
  const MOST_BYTES = 100000;
  const HINTS = {
    draw: "Click the field to place a node, one node and then another to join them.",
    erase: "Click a node or an edge to remove it.",
  };
  const CLICKS = {
    electric: "Click a node to put current in, another to take it out; click an edge to set its resistance.",
    resistance: "Click the node to measure from; click an edge to set its resistance.",
    heat: "Click the node that is heated; click an edge to set its resistance.",
    eigenvector: "Click an edge to set its resistance; drag nodes to arrange them.",
  };
  const dash = (window.dash_clientside = window.dash_clientside || {});
  const set = (name, props) => dash.set_props(name, props);
  const now = { state: null, answer: null, layer: 0, link: "" };
  let timer = null;

  function element(name) {
    return document.getElementById(name);
  }

  /* ------------------------------------------------------------------------------------------------ playing */

  function stop() {
    clearInterval(timer);
    timer = null;
    element("play").textContent = "Play";
    element("play").setAttribute("aria-label", "Play the layers");
  }

  function play(clicks) {
    if (!clicks) return;
    if (timer) return stop();
    if (!now.answer) return;
    let layer = now.layer >= now.answer.layers ? 0 : now.layer;
    set("layer", { value: layer });
    element("play").textContent = "Pause";
    element("play").setAttribute("aria-label", "Pause");
    const pace = Math.min(700, Math.max(50, 7000 / now.answer.layers));
    timer = setInterval(() => {
      if (!now.answer || layer >= now.answer.layers) return stop();
      layer += 1;
      set("layer", { value: layer });
    }, pace);
  }

  /* ------------------------------------------------------------------------------------------------ links and files */

  function remember() {
    const query = new URLSearchParams(now.link);
    query.set("layer", now.layer);
    history.replaceState(null, "", location.pathname + "?" + query);
  }

  function say(text) {
    set("message", { children: text });
  }

  function save(blob, suffix) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `ohmformer-${now.state.task}-${now.state.origin}.${suffix}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function title() {
    const { task, method, layers, errors, readout } = now.answer;
    const unit = readout.unit ? " " + readout.unit : "";
    return [
      `${task.label} · ${method} · layer ${now.layer} of ${layers}`,
      `${readout.label}: ${explorer.digits(readout.now[now.layer], 6)}${unit} (exact ${explorer.digits(readout.exact, 6)}${unit}), ` +
        `${now.answer.errorLabel} ${errors[now.layer] === null ? "not a number" : errors[now.layer].toExponential(1)}`,
    ];
  }

  /* ------------------------------------------------------------------------------------------------ what Dash calls */

  dash.explorer = {
    receive(answer, state) {
      if (timer) stop();
      return answer ? [answer.layers, Math.min(state.layer, answer.layers)] : [dash.no_update, dash.no_update];
    },

    draw(state, answer, layer, truth, tool, theme, link) {
      if (!state) return;
      const fits = answer && answer.exact.length === state.nodes.length && answer.layers === state.layers;
      Object.assign(now, { state, answer: fits ? answer : null, layer: Math.min(Number(layer) || 0, state.layers), link });
      const exact = (truth || []).includes("exact");
      const values = now.answer ? (exact ? now.answer.exact : now.answer.values[now.layer]) : null;
      explorer.drawCircuit(state, values, now.answer, tool);
      explorer.showEditor(state, false);
      explorer.showLegend(now.answer);
      explorer.showReadout(now.answer, now.layer);
      explorer.showValues(state, now.answer, now.layer);
      explorer.showErrors(now.answer, now.layer);
      explorer.showWeights(now.answer, now.layer);
      element("layer-label").textContent = exact ? "exact answer" : `layer ${now.layer} of ${state.layers}`;
      element("hint").textContent = HINTS[tool] || CLICKS[state.task];
      remember();
    },

    answered() {
      explorer.sendNext();
    },

    file(contents, filename) {
      if (!contents) return dash.no_update;
      if (contents.length > (MOST_BYTES * 4) / 3 + 200) {
        say(`Expected a file of at most ${MOST_BYTES / 1000} kB, got about ${Math.round((contents.length * 3) / 4000)} kB.`);
        set("upload", { contents: null });
        return dash.no_update;
      }
      set("upload", { contents: null });
      return { contents, filename: String(filename), at: Date.now() };
    },

    play,

    copy(clicks) {
      if (!clicks) return;
      const done = () => say("The link is in the clipboard; it is also the address of this page.");
      const failed = () => say("The browser keeps its clipboard closed: copy the address of this page instead.");
      if (navigator.clipboard) navigator.clipboard.writeText(location.href).then(done, failed);
      else failed();
    },

    picture(clicks) {
      if (!clicks) return;
      if (!now.answer) return say("There is no answer to take a picture of yet.");
      explorer.pictureOf(title(), (blob) => save(blob, "png"));
    },

    json(clicks) {
      if (!clicks) return;
      const whole = { state: { ...now.state, layer: now.layer }, answer: now.answer };
      save(new Blob([JSON.stringify(whole, null, 1)], { type: "application/json" }), "json");
    },

    clear(clicks) {
      if (!clicks) return;
      explorer.selected = null;
      set("tool", { value: "draw" });
      explorer.send({ kind: "clear" });
    },
  };

  /* ------------------------------------------------------------------------------------------------ light and dark */

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    explorer.forgetPalette();
    set("theme", { data: Date.now() });
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.open && now.state) explorer.showValues(now.state, now.answer, now.layer);
  }, true);
})();
