/* The circuit as SVG: nodes coloured by value, edges as wide as their current. What fingers and keys do to it is in editing.js,
   without which it is a picture. Colours are written as attributes, not left to the style sheet, so that a copy needs nothing else. */
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const FONT = "system-ui, sans-serif";
  const EMPTY = { x: -400, y: -250, w: 800, h: 500 };
  const LEAST = { w: 560, h: 400 }; /* a graph of two nodes is not blown up */
  const NAMED = 150; /* nodes of larger graphs have no room for names */
  const explorer = (window.explorer = window.explorer || {});

  explorer.make = function (name, attributes, parent, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  };

  /* ------------------------------------------------------------------------------------------------ colours */

  const COLOURS = ["ink", "muted", "line", "paper", "accent", "low", "mid", "high", "bound", "unknown", "second"];
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
  let crowded = false;
  let spacing = Infinity; /* from a node to the next one, in the median */

  function frame(state, fixed) {
    const key = JSON.stringify([state.origin, state.nodes.length]);
    if (key === framed) return;
    framed = key;
    if (fixed) return;
    if (!state.nodes.length) return void (view = EMPTY);
    const [xs, ys] = [1, 2].map((axis) => state.nodes.map((n) => n[axis]));
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    const [w, h] = [Math.max(...xs) - left, Math.max(...ys) - top];
    const margin = 60 + 0.06 * Math.max(w, h);
    view = { w: Math.max(w + 2 * margin, LEAST.w), h: Math.max(h + 2 * margin, LEAST.h) };
    view = { x: left + w / 2 - view.w / 2, y: top + h / 2 - view.h / 2, ...view };
    const nearest = xs.map((x, i) => xs.reduce((least, u, j) => (j === i ? least : Math.min(least, Math.hypot(u - x, ys[j] - ys[i]))), Infinity));
    spacing = nearest.sort((a, b) => a - b)[nearest.length >> 1];
    crowded = xs.length > NAMED;
  }

  explorer.radius = function () {
    const least = crowded ? Math.max(view.w, 1.5 * view.h) / 200 : 24;
    return Math.max(least, Math.min(40, 0.027 * Math.max(view.w, 1.5 * view.h), (crowded ? 0.28 : 0.42) * spacing));
  };

  /* ------------------------------------------------------------------------------------------------ drawing */

  const circuits = {}; /* by the element they are in */

  explorer.selected = null;
  explorer.joining = null; /* the node that an edge is being drawn from */
  explorer.stop = { node: 0, edge: 0 }; /* where Tab goes among the nodes, and among the edges */

  explorer.drawCircuit = function (name, state, values, run, tool) {
    const host = document.getElementById(name);
    frame(state, tool === "draw" || tool === "erase");
    if (tool !== "draw") explorer.joining = null;
    let circuit = circuits[name];
    if (!circuit || circuit.svg.parentNode !== host) {
      const svg = explorer.make("svg", { role: "group", "aria-label": "Circuit", preserveAspectRatio: "xMidYMid meet" }, host);
      circuit = circuits[name] = { svg, built: null, update: [] };
      if (explorer.listen) explorer.listen(circuit);
    }
    Object.assign(circuit, { state, values, run, tool });
    paint(circuit);
  };

  explorer.repaint = function () {
    Object.values(circuits).forEach((circuit) => circuit.svg.isConnected && paint(circuit));
  };

  /* As long as what the elements were made for stands, only values are written into them. */
  function paint(circuit) {
    const { state, values, run, tool } = circuit;
    const palette = explorer.palette();
    const key = [state, run, tool, palette, explorer.joining, explorer.selected, ...Object.values(view)];
    if (circuit.built === null || key.some((part, i) => part !== circuit.built[i])) build(circuit, palette);
    circuit.built = key;
    circuit.update.forEach((write) => write(values));
  }

  function build(circuit, palette) {
    const { svg, state, run, tool } = circuit;
    const focused = svg.contains(document.activeElement) && document.activeElement.getAttribute("data-key");
    const [edges, nodes, labels] = [0, 1, 2].map(() => explorer.make("g", {})); /* labels above all nodes */
    const strongest = run && run.task.flows ? strongestCurrent(state, run.exact) : 0;
    const twins = parallel(state.edges);
    circuit.centre = [1, 2].map((axis) => state.nodes.reduce((sum, node) => sum + node[axis], 0) / state.nodes.length);
    const stop = { node: Math.min(explorer.stop.node, state.nodes.length - 1), edge: Math.min(explorer.stop.edge, state.edges.length - 1) };
    circuit.update = [
      ...state.edges.map((edge, j) => drawEdge(circuit, edges, j, edge, twins[j], strongest, stop.edge === j, palette)),
      ...state.nodes.map((node, i) => drawNode(circuit, nodes, labels, i, node, stop.node === i, palette)),
    ];
    svg.setAttribute("viewBox", [view.x, view.y, view.w, view.h].join(" "));
    svg.setAttribute("data-tool", tool);
    svg.setAttribute("aria-label", run ? `Circuit, ${run.method}` : "Circuit");
    svg.replaceChildren(edges, nodes, labels);
    if (!state.nodes.length) {
      const attributes = { x: view.x + view.w / 2, y: view.y + view.h / 2, "text-anchor": "middle", fill: palette.muted };
      explorer.make("text", { ...attributes, "font-size": 22, "font-family": FONT }, svg, "Choose Draw and click here to place a node");
    }
    const again = focused && svg.querySelector(`[data-key="${focused}"]`);
    if (again) again.focus({ preventScroll: true });
  }

  /* what can be reached by keys is a button where it can be changed, and a picture where it cannot */
  function reached(kind, number, first) {
    const attributes = { class: kind, ["data-" + kind]: number, "data-key": kind[0] + number };
    return explorer.listen ? { ...attributes, role: "button", tabindex: first ? 0 : -1 } : { ...attributes, role: "img" };
  }

  function strongestCurrent(state, values) {
    return state.edges.reduce((most, [u, v, ohm]) => Math.max(most, Math.abs(values[u] - values[v]) / ohm), 1e-300);
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

  function drawEdge({ state, run, centre }, parent, j, [u, v, ohm], bend, strongest, first, palette) {
    const [a, b] = [state.nodes[u], state.nodes[v]];
    const [dx, dy] = [b[1] - a[1], b[2] - a[2]];
    const length = Math.hypot(dx, dy) || 1;
    const side = u < v ? 1 : -1;
    const [nx, ny] = [(-dy / length) * side, (dx / length) * side];
    const [mx, my] = [(a[1] + b[1]) / 2 + nx * bend * 36, (a[2] + b[2]) / 2 + ny * bend * 36];
    const path = `M${a[1]} ${a[2]}Q${2 * mx - (a[1] + b[1]) / 2} ${2 * my - (a[2] + b[2]) / 2} ${b[1]} ${b[2]}`;
    const unit = explorer.radius() / 24;
    const chosen = explorer.selected && explorer.selected.edge === j;
    const group = explorer.make("g", reached("edge", j, first), parent);
    const title = explorer.make("title", {}, group);
    explorer.make("path", { d: path, fill: "none", stroke: "transparent", "stroke-width": 26 * unit }, group);
    const wire = explorer.make("path", { class: "wire", d: path, fill: "none", "stroke-linecap": "round" }, group);
    const arrow = explorer.make("path", { class: "arrow", stroke: palette.paper, "stroke-width": 1.4 * unit, "stroke-linejoin": "round" }, group);
    if (chosen || (ohm !== 1 && state.nodes.length <= NAMED)) {
      /* on the outer side of the edge, where the label of the next edge is not; above it if there is no outer side */
      const outside = (mx - centre[0]) * nx + (my - centre[1]) * ny;
      const lift = 21 * unit * (Math.abs(outside) > unit ? Math.sign(outside) : ny > 0 ? -1 : 1);
      write(group, mx + nx * lift, my + ny * lift + 5 * unit, `${explorer.digits(ohm, 3)} Ω`, 14 * unit, palette.ink, palette.paper);
    }
    return (values) => {
      const flow = values && run && run.task.flows ? (values[u] - values[v]) / ohm : null;
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

  function drawNode({ state, run }, parent, labels, i, [name, x, y], first, palette) {
    const r = explorer.radius();
    const ampere = state.task === "electric" ? (state.currents.find(([node]) => node === i) || [0, 0])[1] : 0;
    const source = (state.task === "resistance" || state.task === "heat") && state.source === i;
    const role = ampere > 0 ? `, ${ampere} ampere in` : ampere < 0 ? `, ${-ampere} ampere out` : source ? ", source" : "";
    const group = explorer.make("g", { ...reached("node", i, first), transform: `translate(${x} ${y})` }, parent);
    const title = explorer.make("title", {}, group);
    if (role) explorer.make("circle", { r: r + 6, fill: palette.paper, stroke: palette.accent, "stroke-width": 2.6 }, group);
    const chosen = explorer.joining === i || (explorer.selected && explorer.selected.node === i);
    const outline = { stroke: chosen ? palette.accent : palette.ink, "stroke-width": chosen ? 4 : 1.6, "stroke-opacity": chosen ? 1 : 0.55 };
    const dot = explorer.make("circle", { class: "dot", r, ...outline }, group);
    const short = name.length > 9 ? name.slice(0, 8) + "…" : name;
    const both = run && state.nodes.length <= 32; /* the name and below it the value */
    const called = state.nodes.length <= NAMED ? write(group, 0, 0, short, 1, "") : null;
    const number = both ? write(group, 0, 0, "", 1, "") : null;
    const fit = (element, at, text, most) => {
      const size = Math.min(most * r, (2.9 * r) / Math.max(text.length, 1));
      set(element, { y: at * r + 0.36 * size, "font-size": size });
      element.textContent = text;
    };
    if (called) fit(called, both ? -0.32 : 0, short, both ? 0.6 : 0.8);
    if (ampere) {
      const size = state.nodes.length <= NAMED ? 0.62 * r : view.h / 34;
      const text = `${ampere > 0 ? "in" : "out"} ${explorer.digits(Math.abs(ampere), 3)} A`;
      const [dx, dy] = outward(state, i);
      const [half, gap] = [0.3 * size * text.length, r + 12];
      const within = (at, low, high) => Math.min(Math.max(at, low), high);
      const left = within(x + dx * (gap + half), view.x + half, view.x + view.w - half);
      const down = within(y + dy * (gap + size / 2) + 0.35 * size, view.y + size, view.y + view.h - 0.3 * size);
      write(labels, left, down, text, size, palette.accent, palette.paper).setAttribute("font-weight", 650);
    }
    return (values) => {
      const value = values ? values[i] : null;
      const fill = run ? explorer.colour(value === null ? null : value / (run.scale || 1), palette) : palette.unknown;
      const shown = !run ? "no value" : value === null ? "infinite" : `${explorer.digits(value)} ${run.task.unit}`.trim();
      title.textContent = `Node ${name}: ${shown}${role}`;
      group.setAttribute("aria-label", title.textContent);
      dot.setAttribute("fill", fill);
      if (called) called.setAttribute("fill", readable(fill));
      if (!number) return;
      const small = value !== null && Math.abs(value) < 1e-4 * run.scale;
      fit(number, 0.38, small ? "0" : explorer.digits(value, 2).replace("-", "−"), 0.56);
      number.setAttribute("fill", readable(fill));
    };
  }

  /* the direction away from the neighbours, where a label is in nobody's way */
  function outward({ nodes, edges }, i) {
    const others = edges.filter((e) => e[0] === i || e[1] === i).map(([u, v]) => nodes[u === i ? v : u]);
    const away = [1, 2].map((axis) => others.reduce((sum, other) => sum + nodes[i][axis] - other[axis], 0));
    const length = Math.hypot(...away);
    return length < 20 ? [0, -1] : away.map((x) => x / length);
  }

  /* ------------------------------------------------------------------------------------------------ picture */

  explorer.pictureOf = function (lines, done) {
    const palette = explorer.palette();
    const shown = Object.values(circuits).filter(({ svg }) => svg.isConnected && !svg.closest("[hidden]"));
    const [each, head] = [1200 / shown.length, 34 + 30 * lines.length];
    const height = Math.max(400, Math.round((each * view.h) / view.w));
    const whole = explorer.make("svg", { xmlns: SVG, width: 1200, height: head + height, viewBox: `0 0 1200 ${head + height}` });
    explorer.make("rect", { width: 1200, height: head + height, fill: palette.paper }, whole);
    lines.forEach((line, i) => {
      const look = i ? { "font-size": 20, fill: palette.muted } : { "font-size": 24, "font-weight": 650, fill: palette.ink };
      explorer.make("text", { x: 32, y: 46 + 30 * i, "font-family": FONT, ...look }, whole, line);
    });
    shown.forEach(({ svg }, i) => {
      const copy = svg.cloneNode(true);
      set(copy, { width: each, height, x: i * each, y: head });
      whole.appendChild(copy);
    });
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [1200, head + height];
      canvas.getContext("2d").drawImage(image, 0, 0);
      canvas.toBlob(done, "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(whole));
  };
})();
