/* The error against the layer, and what is proved of it, on a logarithmic scale; pressing into it moves the slider. */
(function () {
  "use strict";
  const explorer = (window.explorer = window.explorer || {});
  const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [340, 236, 44, 10, 28, 34];
  const LEAST = 1e-17;
  let svg = null;
  let marker = null;
  let shown = null; /* {answer, palette, runs, x, y} */

  explorer.showErrors = function (answer, layer) {
    const palette = explorer.palette();
    if (!shown || shown.answer !== answer || shown.palette !== palette) drawCurves(answer, palette);
    if (answer) move(layer);
  };

  function move(layer) {
    const x = shown.x(layer);
    marker.setAttribute("x1", x);
    marker.setAttribute("x2", x);
    shown.runs.forEach(({ errors, layers, dot }) => {
      const error = errors[Math.min(layer, layers)];
      dot.setAttribute("cx", shown.x(Math.min(layer, layers)));
      dot.setAttribute("cy", error === null ? -99 : shown.y(error));
    });
  }

  function drawCurves(answer, palette) {
    const host = document.getElementById("errors");
    if (svg === null || svg.parentNode !== host) {
      svg = explorer.make("svg", { role: "img" }, host);
      svg.addEventListener("pointerdown", press);
      svg.addEventListener("pointermove", (event) => event.buttons && press(event));
    }
    svg.replaceChildren();
    shown = { answer, palette };
    if (!answer) return;
    const runs = (shown.runs = explorer.runs(answer).map((run) => ({ ...run })));
    const depth = explorer.depth(answer);
    const top = TOP + (runs.length > 1 ? 32 : 0); /* of the curves; names of two stand above */
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT + top - TOP}`);
    const floor = HEIGHT + top - TOP - BOTTOM;
    const seen = runs.flatMap(({ errors, bounds }) => [...errors, ...bounds]).filter((v) => v !== null).map((v) => Math.log10(Math.max(v, LEAST)));
    const high = Math.max(...seen, -16) + 0.15;
    const low = Math.min(...seen, high - 1) - 0.15;
    const x = (shown.x = (layer) => LEFT + ((WIDTH - LEFT - RIGHT) * layer) / Math.max(depth, 1));
    const y = (shown.y = (v) => top + ((floor - top) * (high - Math.log10(Math.max(v, LEAST)))) / (high - low));
    const text = { "font-size": 11.5, "font-family": "system-ui, sans-serif", fill: palette.muted };
    const every = Math.max(1, Math.ceil((high - low) / 6));
    for (let power = Math.ceil(low / every) * every; power <= high; power += every) {
      const at = y(10 ** power);
      explorer.make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at, stroke: palette.line }, svg);
      const label = explorer.make("text", { x: LEFT - 7, y: at + 4, "text-anchor": "end", ...text }, svg, power ? "10" : "1");
      if (power) explorer.make("tspan", { dy: -5, "font-size": 9 }, label, String(power).replace("-", "−"));
    }
    ticks(depth).forEach((layer) => {
      explorer.make("text", { x: x(layer), y: floor + 16, "text-anchor": "middle", ...text }, svg, layer);
    });
    explorer.make("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: floor + BOTTOM - 3, "text-anchor": "middle", ...text }, svg, "layer");
    marker = explorer.make("line", { y1: top, y2: floor, stroke: palette.muted, "stroke-dasharray": "2 3" }, svg);
    const proved = runs.some(({ bounds }) => bounds.some((b) => b !== null));
    runs.forEach((run, i) => {
      const colour = i ? palette.second : palette.accent;
      const limit = i ? palette.second : runs.length > 1 ? palette.accent : palette.bound;
      curve(run.bounds, limit, { "stroke-dasharray": "6 4", "stroke-opacity": runs.length > 1 ? 0.7 : 1 });
      curve(run.errors, colour, {});
      if (runs.length > 1) key(LEFT, 28 + 16 * i, run.method, colour, {}, text);
      run.dot = explorer.make("circle", { r: 5.5, fill: colour, stroke: palette.paper, "stroke-width": 2 }, svg);
    });
    const dashed = { "stroke-dasharray": "6 4" };
    const [line, limit] = runs.length > 1 ? [palette.muted, palette.muted] : [palette.accent, palette.bound];
    key(LEFT, 10, answer.errorLabel, line, {}, text);
    key(LEFT + 40 + 6.2 * answer.errorLabel.length, 10, proved ? "proved bound" : "", limit, dashed, text);
    const words = runs.map(({ method, layers, errors, errorLabel }) => {
      const last = errors[layers];
      return `${method}: ${errorLabel} after ${layers} layers ${last === null ? "not a number" : last.toExponential(1)}`;
    });
    svg.setAttribute("aria-label", words.join("; "));
  }

  /* Where numbers are missing the line is broken; one that stands alone is a diamond, smaller where there are many. */
  function curve(values, colour, dashes) {
    let path = "";
    const size = values.filter((v) => v !== null).length > 20 ? 4 : 8;
    values.forEach((v, i) => {
      if (v === null) return;
      const before = i > 0 && values[i - 1] !== null;
      path += `${before ? "L" : "M"}${shown.x(i).toFixed(1)} ${shown.y(v).toFixed(1)}`;
      if (!before && (i + 1 === values.length || values[i + 1] === null)) {
        const at = `translate(${shown.x(i)} ${shown.y(v)}) rotate(45)`;
        explorer.make("rect", { x: -size / 2, y: -size / 2, width: size, height: size, fill: colour, transform: at }, svg);
      }
    });
    explorer.make("path", { d: path, fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-linejoin": "round", ...dashes }, svg);
  }

  function key(x, y, label, colour, dashes, text) {
    if (!label) return;
    explorer.make("line", { x1: x, x2: x + 22, y1: y, y2: y, stroke: colour, "stroke-width": 2.2, ...dashes }, svg);
    explorer.make("text", { x: x + 28, y: y + 4, ...text }, svg, label);
  }

  function ticks(layers) {
    const step = [1, 2, 5, 10, 20, 50, 100].find((s) => layers / s <= 6) || 100;
    return Array.from({ length: Math.floor(layers / step) + 1 }, (_, i) => i * step);
  }

  function press(event) {
    if (!shown || !shown.answer) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    const share = (at - LEFT) / (WIDTH - LEFT - RIGHT);
    explorer.setLayer(Math.round(Math.max(0, Math.min(1, share)) * explorer.depth(shown.answer)));
  }
})();
