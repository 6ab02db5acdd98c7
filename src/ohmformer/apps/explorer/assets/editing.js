/* What fingers and keys do to the circuit. Every change is sent to the server as one event and comes back as a state. */
(function () {
  "use strict";
  const explorer = (window.explorer = window.explorer || {});
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const STEP = 20; /* how far Shift and an arrow move a node; an edge is about 100 long */
  let dragging = null;

  /* One event after the other: the next is sent when the page has come back from the one before. */
  const waiting = [];
  let sent = 0;

  explorer.send = function (event) {
    waiting.push(event);
    if (Date.now() - sent > 5000) explorer.sendNext();
  };

  explorer.sendNext = function () {
    const event = waiting.shift();
    sent = event ? Date.now() : 0;
    if (event) window.dash_clientside.set_props("event", { data: { ...event, at: sent } });
  };

  function under(event) {
    const [node, edge] = ["node", "edge"].map((kind) => event.target.closest(`[data-${kind}]`));
    return { node: node ? Number(node.dataset.node) : null, edge: edge ? Number(edge.dataset.edge) : null };
  }

  explorer.listen = function (circuit) {
    const root = circuit.svg;
    const place = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(root.getScreenCTM().inverse());
      return { x: point.x, y: point.y };
    };
    root.addEventListener("pointerdown", (event) => {
      const { node } = under(event);
      if (node === null || event.button !== 0) return;
      dragging = { node, from: place(event), moved: false, pointer: event.pointerId };
    });
    root.addEventListener("pointermove", (event) => {
      if (!dragging || event.pointerId !== dragging.pointer) return;
      const to = place(event);
      if (!dragging.moved && Math.hypot(to.x - dragging.from.x, to.y - dragging.from.y) < explorer.radius() / 3) return;
      if (!dragging.moved) root.setPointerCapture(event.pointerId);
      dragging.moved = true;
      const nodes = circuit.state.nodes.slice();
      nodes[dragging.node] = [nodes[dragging.node][0], to.x, to.y];
      circuit.state = { ...circuit.state, nodes };
      explorer.repaint();
    });
    root.addEventListener("pointerup", () => {
      if (!dragging || !dragging.moved) return;
      const [, x, y] = circuit.state.nodes[dragging.node];
      explorer.send({ kind: "move", node: dragging.node, x, y });
    });
    root.addEventListener("pointercancel", () => (dragging = null));
    root.addEventListener("click", (event) => {
      const moved = dragging && dragging.moved;
      dragging = null;
      if (!moved) act(circuit, under(event), place(event));
    });
    root.addEventListener("focusin", (event) => {
      const { node, edge } = under(event);
      if (node !== null) become(circuit, "node", node);
      if (edge !== null) become(circuit, "edge", edge);
    });
    root.addEventListener("keydown", (event) => {
      const { node, edge } = under(event);
      if (node === null && edge === null) return;
      if (event.key === "Delete" || event.key === "Backspace") erase({ node, edge });
      else if (event.key === "Enter" || event.key === " ") act(circuit, { node, edge }, null);
      else if (event.key in ARROWS && node !== null && event.shiftKey) shift(circuit, node, ARROWS[event.key]);
      else if (event.key in ARROWS || event.key === "Home" || event.key === "End") walk(circuit, { node, edge }, event.key);
      else return;
      event.preventDefault();
    });
  };

  /* Nodes are one stop of the Tab key and edges another; arrows go from one to the next. */
  function become(circuit, kind, number) {
    const [before, after] = [explorer.stop[kind], number].map((i) => circuit.svg.querySelector(`[data-${kind}="${i}"]`));
    if (before) before.setAttribute("tabindex", -1);
    if (after) after.setAttribute("tabindex", 0);
    explorer.stop[kind] = number;
  }

  function walk({ svg, state }, { node, edge }, key) {
    const [kind, at, count] = node === null ? ["edge", edge, state.edges.length] : ["node", node, state.nodes.length];
    let next = key === "Home" ? 0 : key === "End" ? count - 1 : null;
    if (next === null && kind === "edge") next = (at + (key === "ArrowLeft" || key === "ArrowUp" ? count - 1 : 1)) % count;
    if (next === null) next = nearest(state.nodes, at, ARROWS[key]);
    const found = svg.querySelector(`[data-${kind}="${next}"]`);
    if (found) found.focus();
  }

  /* The node to go to from another in a direction: near, and rather ahead than aside; itself if there is none. */
  function nearest(nodes, from, [dx, dy]) {
    const [, x, y] = nodes[from];
    let [best, least] = [from, Infinity];
    nodes.forEach(([, u, v], i) => {
      const ahead = (u - x) * dx + (v - y) * dy;
      const aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
      const cost = ahead + 2.5 * aside;
      if (i !== from && ahead > 1 && cost < least) [best, least] = [i, cost];
    });
    return best;
  }

  function shift({ state }, node, [dx, dy]) {
    const [, x, y] = state.nodes[node];
    explorer.send({ kind: "move", node, x: x + STEP * dx, y: y + STEP * dy });
  }

  function erase({ node, edge }) {
    explorer.select(null);
    if (node !== null) explorer.send({ kind: "drop-node", node });
    else if (edge !== null) explorer.send({ kind: "drop-edge", edge });
  }

  function act({ tool, state }, { node, edge }, at) {
    if (tool === "erase") return erase({ node, edge });
    if (tool === "draw" && edge === null) {
      const from = explorer.joining;
      explorer.joining = node === null || from !== null ? null : node;
      if (node === null && at) explorer.send({ kind: "add-node", ...at });
      if (node !== null && from !== null && from !== node) explorer.send({ kind: "add-edge", from, to: node });
      return explorer.repaint();
    }
    if (edge !== null) return explorer.select({ edge });
    if (node === null) return explorer.select(null);
    explorer.select(state.task === "electric" ? { node } : null);
    explorer.send({ kind: "tap-node", node });
  }

  explorer.select = function (what) {
    explorer.selected = what;
    explorer.repaint();
    explorer.showEditor(true);
  };

  /* ------------------------------------------------------------------------------------------------ editor */

  explorer.showEditor = function (focus) {
    const state = explorer.current();
    const host = document.getElementById("editor");
    const what = explorer.selected;
    const edge = what && what.edge !== undefined ? state.edges[what.edge] : null;
    const node = what && what.node !== undefined && state.task === "electric" ? state.nodes[what.node] : null;
    if (!edge && !node) return host.replaceChildren();
    const ampere = node ? (state.currents.find(([i]) => i === what.node) || [0, 0])[1] : 0;
    const title = edge ? `Resistance of ${state.nodes[edge[0]][0]} – ${state.nodes[edge[1]][0]}` : `Current into ${node[0]}`;
    if (host.firstChild && host.dataset.title === title) {
      const field = host.querySelector("input");
      if (document.activeElement !== field || !edge) field.value = edge ? edge[2] : ampere;
      return;
    }
    host.dataset.title = title;
    host.replaceChildren();
    const form = explorer.html("form", "", null, host);
    form.noValidate = true;
    const label = explorer.html("label", "", title, form);
    const field = explorer.html("input", "", null, label);
    Object.assign(field, { type: "number", step: "any", value: edge ? edge[2] : ampere, name: "amount" });
    explorer.html("span", "", edge ? "Ω" : "A", label);
    explorer.html("button", "", "Set", form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const amount = field.value === "" ? null : Number(field.value);
      const chosen = explorer.selected;
      if (edge) explorer.send({ kind: "set-ohm", edge: chosen.edge, ohm: amount });
      else explorer.send({ kind: "set-current", node: chosen.node, ampere: amount });
    });
    if (focus && edge) field.select();
  };
})();
