/* What stands beside the circuit: the editor of one edge or node, legend, readout, table, weights and the error chart.
   All text goes in as text, never as markup. */
(function () {
  "use strict";
  const explorer = (window.explorer = window.explorer || {});

  function html(name, className, text, parent) {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined && text !== null) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  }

  /* ------------------------------------------------------------------------------------------------ editor */

  explorer.showEditor = function (state, focus) {
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
    const form = html("form", "", null, host);
    form.noValidate = true;
    const label = html("label", "", title, form);
    const field = html("input", "", null, label);
    Object.assign(field, { type: "number", step: "any", value: edge ? edge[2] : ampere, name: "amount" });
    html("span", "", edge ? "Ω" : "A", label);
    html("button", "", "Set", form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const amount = field.value === "" ? null : Number(field.value);
      const chosen = explorer.selected;
      if (edge) explorer.send({ kind: "set-ohm", edge: chosen.edge, ohm: amount });
      else explorer.send({ kind: "set-current", node: chosen.node, ampere: amount });
    });
    if (focus && edge) field.select();
  };

  /* ------------------------------------------------------------------------------------------------ legend, readout, table */

  explorer.showLegend = function (answer) {
    const host = document.getElementById("legend");
    host.replaceChildren();
    if (!answer) return;
    const { signed, value, unit, flows } = answer.task;
    const top = explorer.digits(answer.scale, 3) + (unit ? " " + unit : "");
    html("span", "", signed ? "−" + top : "0", host);
    html("span", signed ? "bar both" : "bar", null, host);
    html("span", "", top, host);
    html("span", "what", value + (flows ? "; edges: as wide as the current" : ""), host);
  };

  explorer.showReadout = function (answer, layer) {
    const host = document.getElementById("readout");
    host.replaceChildren();
    if (!answer) return;
    const { label, unit, now, exact } = answer.readout;
    const tail = unit ? " " + unit : "";
    html("p", "label", label, host);
    const rows = html("dl", "", null, host);
    const error = answer.errors[layer];
    const bound = answer.bounds[layer];
    [
      [layer === 0 ? "before the first layer" : `after layer ${layer}`, explorer.digits(now[layer], 6) + tail],
      ["exact, by LAPACK", explorer.digits(exact, 6) + tail],
      [answer.errorLabel, error === null ? "not a number" : error.toExponential(1)],
      ["proved bound", bound === null ? "none here" : bound.toExponential(1)],
    ].forEach(([name, text]) => {
      html("dt", "", name, rows);
      html("dd", "", text, rows);
    });
  };

  explorer.showValues = function (state, answer, layer) {
    const host = document.getElementById("values");
    if (!host.closest("details").open && host.dataset.ready === "no") return;
    host.dataset.ready = "no";
    host.replaceChildren();
    if (!answer) return;
    const table = html("table", "", null, host);
    const head = html("tr", "", null, html("thead", "", null, table));
    ["node", `layer ${layer}`, "exact", "difference"].forEach((text) => (html("th", "", text, head).scope = "col"));
    const body = html("tbody", "", null, table);
    const tidy = (x) => (x !== null && Math.abs(x) < 1e-12 * answer.scale ? 0 : x); /* rounding, not news */
    state.nodes.forEach(([name], i) => {
      const [now, exact] = [tidy(answer.values[layer][i]), tidy(answer.exact[i])];
      const row = html("tr", "", null, body);
      html("th", "", name, row).scope = "row";
      html("td", "", explorer.digits(now, 6), row);
      html("td", "", explorer.digits(exact, 6), row);
      html("td", "", now === null || exact === null ? "" : explorer.digits(tidy(now - exact), 2), row);
    });
  };

  /* ------------------------------------------------------------------------------------------------ weights */

  let drawn = null; /* the matrices that are on the page: most constructions repeat theirs */

  explorer.showWeights = function (answer, layer) {
    const host = document.getElementById("weights");
    const title = document.getElementById("weights-title");
    title.textContent = answer && layer > 0 ? `Weights of layer ${layer}` : "Weights of this layer";
    const { blocks, layers, order } = answer ? answer.weights : {};
    const matrices = answer && layer > 0 ? layers[order[layer - 1]] : layer;
    const palette = explorer.palette();
    if (drawn && drawn.matrices === matrices && drawn.palette === palette) return;
    drawn = { matrices, palette };
    host.replaceChildren();
    if (!answer) return;
    if (layer === 0) return void html("p", "hint", "Layer 0 is the input: no weights yet.", host);
    const grid = html("div", "matrices", null, null);
    matrices.forEach((matrix) => drawMatrix(grid, matrix, blocks));
    host.appendChild(grid);
    const wide = Object.values(blocks).some((cells) => cells > 8);
    if (!wide) html("p", "hint", "A coloured diagonal is a multiple of the identity, whatever the size of the graph.", host);
  };

  /* every block has the same size on the page, whatever its number of rows */
  function drawMatrix(parent, matrix, blocks) {
    const palette = explorer.palette();
    const names = Object.keys(blocks);
    const [left, top, size] = [58, 4, 132];
    const side = size / names.length;
    const start = (name) => names.indexOf(name) * side;
    const nonzero = matrix.blocks.filter(([, , c]) => Array.isArray(c) || c !== 0);
    const largest = Math.max(1e-300, ...nonzero.flatMap(([, , c]) => [c].flat(2).map(Math.abs)));
    const words = nonzero.map(([t, s, c]) => `${s} to ${t}: ${Array.isArray(c) ? "a matrix" : explorer.digits(c, 3)}`);
    const label = `W ${matrix.name}, ${matrix.role}. ${words.join("; ") || "zero"}`;
    const figure = html("figure", "", null, parent);
    const caption = html("figcaption", "", "W", figure);
    html("sup", "", matrix.name, caption);
    html("span", "", " " + matrix.role, caption);
    const svg = explorer.make("svg", { viewBox: `0 0 ${left + size + 4} ${top + size + 46}`, role: "img", "aria-label": label }, figure);
    explorer.make("title", {}, svg, label);
    nonzero.forEach(([target, source, c]) => {
      const [rows, columns] = [blocks[target], blocks[source]];
      const [height, width] = [side / rows, side / columns];
      const full = Array.isArray(c) && Array.isArray(c[0]);
      for (let i = 0; i < rows; i++) {
        for (let j = 0; j < columns; j++) {
          const x = full ? c[i][j] : i !== j ? 0 : Array.isArray(c) ? c[i] : c;
          if (!x) continue;
          const at = { x: left + start(source) + j * width, y: top + start(target) + i * height, width, height };
          explorer.make("rect", { ...at, fill: explorer.colour(x / largest, palette) }, svg);
        }
      }
      if (!Array.isArray(c)) {
        const at = { x: left + start(source) + side - 1.5, y: top + start(target) + 8.5 };
        const look = { "text-anchor": "end", "font-size": 9, "font-weight": 600, fill: palette.ink, stroke: palette.paper };
        const text = explorer.digits(c, 3).replace("-", "−");
        explorer.make("text", { ...at, ...look, "stroke-width": 2.5, "paint-order": "stroke" }, svg, text);
      }
    });
    explorer.make("rect", { x: left, y: top, width: size, height: size, fill: "none", stroke: palette.muted }, svg);
    names.forEach((name, i) => {
      const at = i * side;
      if (i > 0) {
        const line = { stroke: palette.line, "stroke-width": 1 };
        explorer.make("line", { x1: left + at, x2: left + at, y1: top, y2: top + size, ...line }, svg);
        explorer.make("line", { x1: left, x2: left + size, y1: top + at, y2: top + at, ...line }, svg);
      }
      const look = { "font-size": 9.5, fill: palette.muted };
      const text = name.replace("_", " ");
      explorer.make("text", { x: left - 4, y: top + at + side / 2 + 3, "text-anchor": "end", ...look }, svg, text);
      const turned = `translate(${left + at + side / 2 + 3} ${top + size + 8}) rotate(-40)`;
      explorer.make("text", { "text-anchor": "end", transform: turned, ...look }, svg, text);
    });
  }
})();
