/* What stands beside the circuit: legend, readout, table of all nodes, weights.
   All text goes in as text, never as markup. */
(function () {
  "use strict";
  const explorer = (window.explorer = window.explorer || {});

  const html = (explorer.html = function (name, className, text, parent) {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined && text !== null) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  });

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

  const scientific = (x, none) => (x === null ? none : x.toExponential(1));

  explorer.showReadout = function (answer, layer) {
    const host = document.getElementById("readout");
    host.replaceChildren();
    if (!answer) return;
    const runs = explorer.runs(answer).map((run) => ({ ...run, at: Math.min(layer, run.layers) }));
    const { label, unit, exact } = answer.readout;
    const tail = unit ? " " + unit : "";
    html("p", "label", label, host);
    const after = layer === 0 ? "before the first layer" : `after layer ${layer}`;
    const rows = [
      [after, ...runs.map(({ readout, at }) => explorer.digits(readout.now[at], 6) + tail)],
      ["exact, by LAPACK", ...runs.map(({ readout }) => explorer.digits(readout.exact, 6) + tail)],
      [answer.errorLabel, ...runs.map(({ errors, at }) => scientific(errors[at], "not a number"))],
      ["proved bound", ...runs.map(({ bounds, at }) => scientific(bounds[at], "none here"))],
    ];
    if (runs.length > 1) return table(host, ["", ...runs.map((run) => run.method)], rows);
    const list = html("dl", "", null, host);
    rows.forEach(([name, text]) => {
      html("dt", "", name, list);
      html("dd", "", text, list);
    });
  };

  function table(host, header, rows) {
    const made = html("table", "", null, host);
    const head = html("tr", "", null, html("thead", "", null, made));
    header.forEach((text) => html(text ? "th" : "td", "", text, head).setAttribute(text ? "scope" : "class", "col"));
    const body = html("tbody", "", null, made);
    rows.forEach(([name, ...cells]) => {
      const row = html("tr", "", null, body);
      html("th", "", name, row).scope = "row";
      cells.forEach((text) => html("td", "", text, row));
    });
  }

  explorer.showValues = function (state, answer, layer) {
    const host = document.getElementById("values");
    if (!host.closest("details").open && host.dataset.ready === "no") return;
    host.dataset.ready = "no";
    const top = host.scrollTop;
    host.replaceChildren();
    if (!answer) return;
    const tidy = (x) => (x !== null && Math.abs(x) < 1e-12 * answer.scale ? 0 : x); /* rounding, not news */
    const runs = explorer.runs(answer);
    const last = runs.length > 1 ? ["first", "second", "exact"] : [`layer ${layer}`, "exact", "difference"];
    const rows = state.nodes.map(([name], i) => {
      const now = runs.map((run) => tidy(run.values[Math.min(layer, run.layers)][i]));
      const exact = tidy(answer.exact[i]);
      const gap = now[0] === null || exact === null ? "" : explorer.digits(tidy(now[0] - exact), 2);
      const numbers = [...now, exact].map((x) => explorer.digits(x, runs.length > 1 ? 4 : 5));
      return [name, ...numbers, ...(runs.length > 1 ? [] : [gap])];
    });
    table(host, ["node", ...last], rows);
    host.scrollTop = top;
  };

  /* ------------------------------------------------------------------------------------------------ weights */

  let drawn = null; /* the matrices that are on the page: most constructions repeat theirs */

  explorer.showWeights = function (answer, layer) {
    const host = document.getElementById("weights");
    const title = document.getElementById("weights-title");
    title.textContent = answer && layer > 0 ? `Weights of layer ${layer}` : "Weights of this layer";
    const runs = explorer.runs(answer);
    const matrices = runs.map(({ weights, layers }) => (layer > 0 && layer <= layers ? weights.layers[weights.order[layer - 1]] : layer === 0));
    const key = [explorer.palette(), answer && answer.weights, ...matrices];
    if (drawn && drawn.length === key.length && drawn.every((part, i) => part === key[i])) return;
    drawn = key;
    host.replaceChildren();
    runs.forEach(({ weights, method, layers }, i) => {
      if (runs.length > 1) html("h3", "", method, host);
      if (matrices[i] === true) return void html("p", "hint", "Layer 0 is the input: no weights yet.", host);
      if (matrices[i] === false) return void html("p", "hint", `It has ${layers} layers.`, host);
      const grid = html("div", "matrices", null, host);
      matrices[i].forEach((matrix) => drawMatrix(grid, matrix, weights.blocks));
    });
    const wide = runs.some(({ weights }) => Object.values(weights.blocks).some((cells) => cells > 8));
    if (layer > 0 && !wide) html("p", "hint", "A coloured diagonal is a multiple of the identity, whatever the size of the graph.", host);
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
