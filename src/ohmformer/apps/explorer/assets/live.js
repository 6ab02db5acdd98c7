/* What Dash calls in the browser (see app.py): files, links, downloads, undoing. */
(function () {
  "use strict";
  const explorer = (window.explorer = window.explorer || {});
  const MOST_BYTES = 500000;
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
  const now = { state: null, answer: null, layer: 0, exact: false, tool: "probe", link: "" };
  let file = null; /* the file that was read last, to read it again with other options */

  explorer.setLayer = (layer) => set("layer", { value: layer });
  explorer.current = () => now.state;

  function element(name) {
    return document.getElementById(name);
  }

  function say(text) {
    set("message", { children: text });
  }

  /* ------------------------------------------------------------------------------------------------ links and history */

  /* The address is the state. A new state is a new entry of the browser's history, so that Back undoes; a layer is not. */
  let opened = false;
  let restoring = false; /* the browser went back or forward, and the page has not followed yet */

  function query() {
    const fields = new URLSearchParams(now.link);
    fields.set("layer", now.layer);
    return fields;
  }

  function remember(fresh) {
    if (restoring && !fresh) return;
    restoring = false;
    const [there, here] = [new URLSearchParams(location.search).get("state"), query()];
    const at = (history.state && history.state.at) || 0;
    const url = location.pathname + "?" + here;
    if (opened && there !== here.get("state")) {
      history.pushState({ at: at + 1 }, "", url);
      sessionStorage.setItem("last", at + 1);
    } else history.replaceState({ at }, "", url);
    opened = true;
    offer();
  }

  function offer() {
    const at = (history.state && history.state.at) || 0;
    set("undo", { disabled: at <= 0 });
    set("redo", { disabled: at >= Number(sessionStorage.getItem("last") || 0) });
  }

  /* Dash asks the server when the address differs from the last one it went back to; going back there twice is news as well. */
  let visited = location.search;
  addEventListener("popstate", () => {
    restoring = true;
    explorer.selected = explorer.joining = null;
    offer();
    if (visited === location.search) set("url", { search: visited });
    visited = location.search;
  });
  /* A field that is being written into undoes its own text; every other place, a field that was sent too, undoes the page. */
  let writing = null;
  addEventListener("input", (event) => (writing = event.target));
  addEventListener("change", () => (writing = null));
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || (writing && writing === event.target)) return;
    const key = event.key.toLowerCase();
    if (key !== "z" && key !== "y") return;
    event.preventDefault();
    element(key === "y" || event.shiftKey ? "redo" : "undo").click();
  });

  function save(blob, suffix) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `ohmformer-${now.state.task}-${now.state.origin}.${suffix}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function title() {
    const { task, readout } = now.answer;
    const unit = readout.unit ? " " + readout.unit : "";
    const words = explorer.runs(now.answer).map((run) => {
      const at = Math.min(now.layer, run.layers);
      const error = run.errors[at] === null ? "not a number" : run.errors[at].toExponential(1);
      return `${run.method}, layer ${at} of ${run.layers}: ${explorer.digits(run.readout.now[at], 6)}${unit}, ${run.errorLabel} ${error}`;
    });
    return [`${task.label}. ${readout.label}: ${explorer.digits(readout.exact, 6)}${unit}`, ...words];
  }

  /* ------------------------------------------------------------------------------------------------ what Dash calls */

  dash.explorer = {
    receive(answer, state) {
      if (explorer.playing()) explorer.stopPlaying();
      if (!answer) return [dash.no_update, dash.no_update];
      const depth = explorer.depth(answer);
      return [depth, Math.min(state.layer, depth)];
    },

    draw(state, answer, layer, truth, tool, theme, link) {
      if (!state) return;
      const fits = answer && answer.exact.length === state.nodes.length && answer.layers === state.layers;
      const depth = fits ? explorer.depth(answer) : state.layers;
      const fresh = now.state !== state;
      const exact = (truth || []).includes("exact");
      Object.assign(now, { state, answer: fits ? answer : null, layer: Math.min(Number(layer) || 0, depth), exact, tool, link });
      explorer.show(now);
      explorer.showEditor(false);
      element("hint").textContent = HINTS[tool] || CLICKS[state.task];
      remember(fresh);
    },

    answered() {
      explorer.sendNext();
    },

    file(contents, options, filename) {
      if (contents) {
        set("upload", { contents: null });
        file = null;
        if (contents.length > (MOST_BYTES * 4) / 3 + 200) {
          say(`Expected a file of at most ${MOST_BYTES / 1000} kB, got about ${Math.round((contents.length * 3) / 4000)} kB.`);
          return dash.no_update;
        }
        file = { contents, filename: String(filename) };
      } else if (!file || options === file.options) return dash.no_update;
      file = { ...file, options: options || "" };
      return { ...file, at: Date.now() };
    },

    play(clicks) {
      if (clicks) explorer.play(now, explorer.setLayer);
    },

    undo(clicks) {
      if (clicks) history.back();
    },

    redo(clicks) {
      if (clicks) history.forward();
    },

    add(clicks) {
      if (clicks) explorer.send({ kind: "add-node" });
    },

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

    async export(clicks) {
      if (!clicks) return;
      const answer = await fetch(location.pathname + "export.html?" + query());
      if (answer.ok) save(await answer.blob(), "html");
      else say(await answer.text());
    },

    clear(clicks) {
      if (!clicks) return;
      explorer.selected = null;
      set("tool", { value: "draw" });
      explorer.send({ kind: "clear" });
    },
  };

  /* ------------------------------------------------------------------------------------------------ screen readers */

  /* Dash calls the label of a radio button an option of a list that is none, and leaves the field of a file without a name. */
  function mend() {
    document.querySelectorAll("#page [role=option], #page [role=listbox], #page label[aria-selected]").forEach((label) => {
      label.removeAttribute("role");
      label.removeAttribute("aria-selected");
    });
    const chooser = document.querySelector("#upload input[type=file]:not([aria-label])");
    if (chooser) chooser.setAttribute("aria-label", "Choose a file");
  }

  const watched = { subtree: true, childList: true, attributes: true, attributeFilter: ["role", "aria-selected"] };
  new MutationObserver(mend).observe(document.documentElement, watched);

  /* ------------------------------------------------------------------------------------------------ light and dark */

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    explorer.forgetPalette();
    set("theme", { data: Date.now() });
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.open && now.state) explorer.showValues(now.state, now.answer, now.layer);
  }, true);
})();
