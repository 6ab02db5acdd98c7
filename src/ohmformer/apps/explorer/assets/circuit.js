/* The circuit as SVG: nodes coloured by value, edges as wide as their current, and what fingers and keys do to them.
   Colours are written as attributes, not left to the style sheet, so that a picture of it needs nothing else. */
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const EMPTY = { x: -400, y: -250, w: 800, h: 500 };
  const FONT = "system-ui, sans-serif";
  const explorer = (window.explorer = window.explorer || {});

  explorer.make = function (name, attributes, parent, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  };

  /* ------------------------------------------------------------------------------------------------ colours */

  const COLOURS = ["ink", "muted", "line", "paper", "accent", "low", "mid", "high", "bound", "unknown"];
  let palette = null;

  /* The colours of the style sheet, read once: the same object until light turns to dark. */
  explorer.palette = function () {
    if (palette === null) {
      const style = getComputedStyle(document.documentElement);
      palette = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
    }
    return palette;
  };

  explorer.forgetPalette = function () {
    palette = null;
  };

  function channels(hex) {
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  }

  /* share -1 is low, 0 is mid, 1 is high */
  explorer.colour = function (share, palette) {
    if (share === null || !isFinite(share)) return palette.unknown;
    const clipped = Math.max(-1, Math.min(1, share));
    const [from, to] = [channels(palette.mid), channels(clipped < 0 ? palette.low : palette.high)];
    const mixed = from.map((c, i) => Math.round(c + (to[i] - c) * Math.abs(clipped)));
    return "#" + mixed.map((c) => c.toString(16).padStart(2, "0")).join("");
  };

  function readable(background) {
    const [r, g, b] = channels(background).map((c) => c / 255);
    return 0.2126 * r * r + 0.7152 * g * g + 0.0722 * b * b > 0.3 ? "#14181f" : "#ffffff";
  }

  explorer.digits = function (x, count) {
    if (x === null || x === undefined) return "∞";
    const size = Math.abs(x);
    if (size !== 0 && (size < 1e-3 || size >= 1e5)) return x.toExponential(2);
    return String(Number(x.toPrecision(count || 4)));
  };

  /* ------------------------------------------------------------------------------------------------ view */

  let view = EMPTY;
  let framed = "";

  function frame(state, fixed) {
    const key = JSON.stringify([state.origin, state.nodes.length]);
    if (key === framed) return;
    framed = key;
    if (fixed) return;
    if (!state.nodes.length) return void (view = EMPTY);
    const xs = state.nodes.map((n) => n[1]);
    const ys = state.nodes.map((n) => n[2]);
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    const [w, h] = [Math.max(...xs) - left, Math.max(...ys) - top];
    const room = 60 + 0.06 * Math.max(w, h);
    view = { x: left - room, y: top - room, w: Math.max(w + 2 * room, 240), h: Math.max(h + 2 * room, 200) };
    view.x -= (view.w - w - 2 * room) / 2;
    view.y -= (view.h - h - 2 * room) / 2;
  }

  function radius() {
    return Math.min(38, Math.max(24, 0.027 * Math.max(view.w, 1.5 * view.h)));
  }

  /* ------------------------------------------------------------------------------------------------ drawing */

  let svg = null;
  let current = null; /* what was drawn last: {state, values, ...} */
  let joining = null; /* the node that an edge is being drawn from */
  let dragging = null;

  explorer.selected = null;

  explorer.drawCircuit = function (state, values, answer, tool) {
    const host = document.getElementById("circuit");
    frame(state, tool === "draw" || tool === "erase");
    if (tool !== "draw") joining = null;
    current = { state, values, answer, tool };
    if (svg === null || svg.parentNode !== host) {
      svg = explorer.make("svg", { role: "group", "aria-label": "Circuit", preserveAspectRatio: "xMidYMid meet" }, host);
      listen(svg);
    }
    paint();
  };

  let built = null; /* what the elements were made for; as long as it stands, only values are written into them */
  let update = []; /* one function of the values per node and edge */

  function paint() {
    const { state, values, answer, tool } = current;
    const palette = explorer.palette();
    const key = [state, answer, tool, palette, joining, explorer.selected, ...Object.values(view)];
    if (built === null || key.some((part, i) => part !== built[i])) build(state, answer, tool, palette);
    built = key;
    update.forEach((write) => write(values));
  }

  function build(state, answer, tool, palette) {
    const focused = document.activeElement && document.activeElement.getAttribute("data-key");
    const edges = explorer.make("g", {});
    const nodes = explorer.make("g", {});
    const labels = explorer.make("g", {}); /* above all nodes */
    const strongest = answer && answer.task.flows ? strongestCurrent(state, answer.exact) : 0;
    const twins = parallel(state.edges);
    update = [
      ...state.edges.map((edge, j) => drawEdge(edges, j, edge, twins[j], strongest, palette)),
      ...state.nodes.map((node, i) => drawNode(nodes, labels, i, node, palette)),
    ];
    svg.setAttribute("viewBox", [view.x, view.y, view.w, view.h].join(" "));
    svg.setAttribute("data-tool", tool);
    svg.replaceChildren(edges, nodes, labels);
    if (!state.nodes.length) {
      const attributes = { x: view.x + view.w / 2, y: view.y + view.h / 2, "text-anchor": "middle", fill: palette.muted };
      explorer.make("text", { ...attributes, "font-size": 22, "font-family": FONT }, svg, "Choose Draw and click here to place a node");
    }
    const again = focused && svg.querySelector(`[data-key="${focused}"]`);
    if (again) again.focus({ preventScroll: true });
  }

  function strongestCurrent(state, values) {
    return Math.max(1e-300, ...state.edges.map(([u, v, ohm]) => Math.abs(values[u] - values[v]) / ohm));
  }

  /* how far each edge is bent, so that parallel ones lie beside each other */
  function parallel(edges) {
    const seen = {};
    const keys = edges.map(([u, v]) => Math.min(u, v) + "-" + Math.max(u, v));
    keys.forEach((key) => (seen[key] = (seen[key] || 0) + 1));
    const at = {};
    return keys.map((key) => {
      at[key] = (at[key] || 0) + 1;
      return at[key] - (seen[key] + 1) / 2;
    });
  }

  function set(element, attributes) {
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  }

  function drawEdge(parent, j, [u, v, ohm], bend, strongest, palette) {
    const { state, answer } = current;
    const [a, b] = [state.nodes[u], state.nodes[v]];
    const [dx, dy] = [b[1] - a[1], b[2] - a[2]];
    const length = Math.hypot(dx, dy) || 1;
    const side = u < v ? 1 : -1;
    const [nx, ny] = [(-dy / length) * side, (dx / length) * side];
    const [mx, my] = [(a[1] + b[1]) / 2 + nx * bend * 36, (a[2] + b[2]) / 2 + ny * bend * 36];
    const path = `M${a[1]} ${a[2]}Q${2 * mx - (a[1] + b[1]) / 2} ${2 * my - (a[2] + b[2]) / 2} ${b[1]} ${b[2]}`;
    const unit = radius() / 24;
    const chosen = explorer.selected && explorer.selected.edge === j;
    const group = explorer.make("g", { class: "edge", tabindex: 0, role: "button", "data-edge": j, "data-key": "e" + j }, parent);
    const title = explorer.make("title", {}, group);
    explorer.make("path", { d: path, fill: "none", stroke: "transparent", "stroke-width": 26 * unit }, group);
    const wire = explorer.make("path", { class: "wire", d: path, fill: "none", "stroke-linecap": "round" }, group);
    const arrow = explorer.make("path", { class: "arrow", stroke: palette.paper, "stroke-width": 1.4 * unit, "stroke-linejoin": "round" }, group);
    if (ohm !== 1 || chosen) {
      const [lift, up] = [21 * unit, ny > 0 ? -1 : 1];
      write(group, mx + nx * lift * up, my + ny * lift * up + 5 * unit, `${explorer.digits(ohm, 3)} Ω`, 14 * unit, palette.ink, palette.paper);
    }
    return (values) => {
      const flow = values && answer && answer.task.flows ? (values[u] - values[v]) / ohm : null;
      const share = flow === null ? 0 : Math.min(1, Math.abs(flow) / strongest);
      const strong = share > 0.02;
      const label = `Edge ${a[0]} to ${b[0]}, ${explorer.digits(ohm)} ohm` + (flow === null ? "" : `, current ${explorer.digits(flow)}`);
      title.textContent = label;
      group.setAttribute("aria-label", label);
      const stroke = chosen ? palette.accent : strong ? palette.ink : palette.muted;
      set(wire, { stroke, "stroke-width": (1.8 + 7 * share) * unit, "stroke-opacity": strong || chosen ? 0.8 : 0.55 });
      const size = (5.5 + 6.5 * share) * unit;
      const turn = (Math.atan2(dy, dx) * 180) / Math.PI + (flow < 0 ? 180 : 0);
      const tip = `M${size} 0L${-size} ${0.85 * size}L${-0.55 * size} 0L${-size} ${-0.85 * size}Z`;
      set(arrow, { d: strong ? tip : "M0 0", fill: stroke, transform: `translate(${mx} ${my}) rotate(${turn})`, visibility: strong ? "visible" : "hidden" });
    };
  }

  function write(parent, x, y, text, size, fill, halo) {
    const attributes = { x, y, "text-anchor": "middle", "font-size": size, "font-family": FONT, fill };
    const outline = halo ? { stroke: halo, "stroke-width": size / 4, "paint-order": "stroke", "stroke-linejoin": "round" } : {};
    return explorer.make("text", { ...attributes, ...outline, "pointer-events": "none" }, parent, text);
  }

  function drawNode(parent, labels, i, [name, x, y], palette) {
    const { state, answer } = current;
    const r = radius();
    const ampere = state.task === "electric" ? (state.currents.find(([node]) => node === i) || [0, 0])[1] : 0;
    const source = (state.task === "resistance" || state.task === "heat") && state.source === i;
    const role = ampere > 0 ? `, ${ampere} ampere in` : ampere < 0 ? `, ${-ampere} ampere out` : source ? ", source" : "";
    const attributes = { class: "node", tabindex: 0, role: "button", "data-node": i, "data-key": "n" + i };
    const group = explorer.make("g", { ...attributes, transform: `translate(${x} ${y})` }, parent);
    const title = explorer.make("title", {}, group);
    if (role) explorer.make("circle", { r: r + 6, fill: palette.paper, stroke: palette.accent, "stroke-width": 2.6 }, group);
    const chosen = joining === i || (explorer.selected && explorer.selected.node === i);
    const outline = { stroke: chosen ? palette.accent : palette.ink, "stroke-width": chosen ? 4 : 1.6, "stroke-opacity": chosen ? 1 : 0.55 };
    const dot = explorer.make("circle", { class: "dot", r, ...outline }, group);
    const short = name.length > 9 ? name.slice(0, 8) + "…" : name;
    const both = answer && state.nodes.length <= 32; /* the name and below it the value */
    const called = write(group, 0, 0, short, 1, "");
    const number = both ? write(group, 0, 0, "", 1, "") : null;
    const fit = (element, at, text, most) => {
      const size = Math.min(most * r, (2.9 * r) / Math.max(text.length, 1));
      set(element, { y: at * r + 0.36 * size, "font-size": size });
      element.textContent = text;
    };
    fit(called, both ? -0.32 : 0, short, both ? 0.6 : 0.8);
    if (ampere) {
      const [dx, dy] = outward(i);
      const text = `${ampere > 0 ? "in" : "out"} ${explorer.digits(Math.abs(ampere), 3)} A`;
      write(labels, x + dx * (r + 38), y + dy * (r + 20) + 0.2 * r, text, 0.62 * r, palette.accent, palette.paper).setAttribute("font-weight", 650);
    }
    return (values) => {
      const value = values ? values[i] : null;
      const fill = answer ? explorer.colour(value === null ? null : value / (answer.scale || 1), palette) : palette.unknown;
      const shown = !answer ? "no value" : value === null ? "infinite" : `${explorer.digits(value)} ${answer.task.unit}`.trim();
      title.textContent = `Node ${name}: ${shown}${role}`;
      group.setAttribute("aria-label", title.textContent);
      dot.setAttribute("fill", fill);
      called.setAttribute("fill", readable(fill));
      if (!number) return;
      const small = value !== null && Math.abs(value) < 1e-4 * answer.scale;
      fit(number, 0.38, small ? "0" : explorer.digits(value, 2).replace("-", "−"), 0.56);
      set(number, { fill: readable(fill), opacity: 0.85 });
    };
  }

  /* the direction away from the neighbours, where a label is in nobody's way */
  function outward(i) {
    const { nodes, edges } = current.state;
    const others = edges.filter((e) => e[0] === i || e[1] === i).map(([u, v]) => nodes[u === i ? v : u]);
    const away = [1, 2].map((axis) => others.reduce((sum, other) => sum + nodes[i][axis] - other[axis], 0));
    const length = Math.hypot(...away);
    return length < 20 ? [0, -1] : away.map((x) => x / length);
  }

  /* ------------------------------------------------------------------------------------------------ fingers and keys */

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

  function place(event) {
    const matrix = svg.getScreenCTM();
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    return { x: point.x, y: point.y };
  }

  function under(event) {
    const node = event.target.closest("[data-node]");
    const edge = event.target.closest("[data-edge]");
    return { node: node ? Number(node.dataset.node) : null, edge: edge ? Number(edge.dataset.edge) : null };
  }

  function listen(root) {
    root.addEventListener("pointerdown", (event) => {
      const { node } = under(event);
      if (node === null || event.button !== 0) return;
      dragging = { node, from: place(event), moved: false, pointer: event.pointerId };
    });
    root.addEventListener("pointermove", (event) => {
      if (!dragging || event.pointerId !== dragging.pointer) return;
      const to = place(event);
      if (!dragging.moved && Math.hypot(to.x - dragging.from.x, to.y - dragging.from.y) < radius() / 3) return;
      if (!dragging.moved) root.setPointerCapture(event.pointerId);
      dragging.moved = true;
      const nodes = current.state.nodes.slice();
      nodes[dragging.node] = [nodes[dragging.node][0], to.x, to.y];
      current = { ...current, state: { ...current.state, nodes } };
      paint();
    });
    root.addEventListener("pointerup", () => {
      if (dragging && dragging.moved) {
        const [, x, y] = current.state.nodes[dragging.node];
        explorer.send({ kind: "move", node: dragging.node, x, y });
      }
    });
    root.addEventListener("pointercancel", () => (dragging = null));
    root.addEventListener("click", (event) => {
      const moved = dragging && dragging.moved;
      dragging = null;
      if (!moved) act(under(event), place(event));
    });
    root.addEventListener("keydown", (event) => {
      if (event.key === "Delete" || event.key === "Backspace") erase(under(event));
      else if (event.key === "Enter" || event.key === " ") act(under(event), null);
      else return;
      event.preventDefault();
    });
  }

  function erase({ node, edge }) {
    explorer.select(null);
    if (node !== null) explorer.send({ kind: "drop-node", node });
    else if (edge !== null) explorer.send({ kind: "drop-edge", edge });
  }

  function act({ node, edge }, at) {
    const { tool, state } = current;
    if (tool === "erase") return erase({ node, edge });
    if (tool === "draw" && edge === null) {
      if (node === null) {
        joining = null;
        if (at) explorer.send({ kind: "add-node", ...at });
      } else if (joining === null) joining = node;
      else {
        if (joining !== node) explorer.send({ kind: "add-edge", from: joining, to: node });
        joining = null;
      }
      return paint();
    }
    if (edge !== null) return explorer.select({ edge });
    if (node === null) return explorer.select(null);
    explorer.select(state.task === "electric" ? { node } : null);
    explorer.send({ kind: "tap-node", node });
  }

  explorer.select = function (what) {
    explorer.selected = what;
    paint();
    explorer.showEditor(current.state, true);
  };

  /* ------------------------------------------------------------------------------------------------ picture */

  explorer.pictureOf = function (lines, done) {
    const palette = explorer.palette();
    const copy = svg.cloneNode(true);
    const [width, height, head] = [1200, Math.max(400, Math.round((1200 * view.h) / view.w)), 34 + 30 * lines.length];
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    copy.setAttribute("y", head);
    const whole = explorer.make("svg", { xmlns: SVG, width, height: head + height, viewBox: `0 0 ${width} ${head + height}` });
    explorer.make("rect", { width, height: head + height, fill: palette.paper }, whole);
    lines.forEach((line, i) => {
      const look = i ? { "font-size": 20, fill: palette.muted } : { "font-size": 24, "font-weight": 650, fill: palette.ink };
      explorer.make("text", { x: 32, y: 46 + 30 * i, "font-family": FONT, ...look }, whole, line);
    });
    whole.appendChild(copy);
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [width, head + height];
      canvas.getContext("2d").drawImage(image, 0, 0);
      canvas.toBlob(done, "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(whole));
  };
})();
