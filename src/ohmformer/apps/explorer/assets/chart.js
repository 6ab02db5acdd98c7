/* The error against the layer, and what is proved of it, on a logarithmic scale; pressing into it moves the slider. */
(function () {
  "use strict";
  const explorer = (window.explorer = window.explorer || {});
  const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [340, 236, 44, 10, 28, 34];
  const LEAST = 1e-17;
  let svg = null;
  let marker = null;
  let shown = null; /* {answer, palette, x, y} */

  explorer.showErrors = function (answer, layer) {
    const palette = explorer.palette();
    if (!shown || shown.answer !== answer || shown.palette !== palette) drawCurves(answer, palette);
    if (answer) move(layer);
  };

  function move(layer) {
    const error = shown.answer.errors[layer];
    const x = shown.x(layer);
    marker.line.setAttribute("x1", x);
    marker.line.setAttribute("x2", x);
    marker.dot.setAttribute("cx", x);
    marker.dot.setAttribute("cy", error === null ? -99 : shown.y(error));
  }

  function drawCurves(answer, palette) {
    const host = document.getElementById("errors");
    if (svg === null || svg.parentNode !== host) {
      svg = explorer.make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" }, host);
      svg.addEventListener("pointerdown", press);
      svg.addEventListener("pointermove", (event) => event.buttons && press(event));
    }
    svg.replaceChildren();
    shown = { answer, palette };
    if (!answer) return;
    const { errors, bounds, layers, errorLabel } = answer;
    const seen = [...errors, ...bounds].filter((v) => v !== null).map((v) => Math.log10(Math.max(v, LEAST)));
    const top = Math.max(...seen, -16) + 0.15;
    const bottom = Math.min(...seen, top - 1) - 0.15;
    const x = (shown.x = (layer) => LEFT + ((WIDTH - LEFT - RIGHT) * layer) / Math.max(layers, 1));
    const y = (shown.y = (v) => TOP + ((HEIGHT - TOP - BOTTOM) * (top - Math.log10(Math.max(v, LEAST)))) / (top - bottom));
    const text = { "font-size": 11.5, "font-family": "system-ui, sans-serif", fill: palette.muted };
    const every = Math.max(1, Math.ceil((top - bottom) / 6));
    for (let power = Math.ceil(bottom / every) * every; power <= top; power += every) {
      const at = y(10 ** power);
      explorer.make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at, stroke: palette.line }, svg);
      const label = explorer.make("text", { x: LEFT - 7, y: at + 4, "text-anchor": "end", ...text }, svg, power ? "10" : "1");
      if (power) explorer.make("tspan", { dy: -5, "font-size": 9 }, label, String(power).replace("-", "−"));
    }
    ticks(layers).forEach((layer) => {
      explorer.make("text", { x: x(layer), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle", ...text }, svg, layer);
    });
    explorer.make("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 3, "text-anchor": "middle", ...text }, svg, "layer");
    const proved = bounds.some((b) => b !== null);
    if (proved) curve(bounds, palette.bound, { "stroke-dasharray": "6 4" });
    curve(errors, palette.accent, {});
    key(LEFT, errorLabel, palette.accent, {}, text);
    key(LEFT + 40 + 6.2 * errorLabel.length, proved ? "proved bound" : "", palette.bound, { "stroke-dasharray": "6 4" }, text);
    const line = explorer.make("line", { y1: TOP, y2: HEIGHT - BOTTOM, stroke: palette.muted, "stroke-dasharray": "2 3" }, svg);
    const dot = explorer.make("circle", { r: 5.5, fill: palette.accent, stroke: palette.paper, "stroke-width": 2 }, svg);
    marker = { line, dot };
    const last = errors[layers];
    svg.setAttribute("aria-label", `${errorLabel} after ${layers} layers: ${last === null ? "not a number" : last.toExponential(1)}`);
  }

  /* Where numbers are missing the line is broken; one that stands alone is a diamond. */
  function curve(values, colour, dashes) {
    let path = "";
    values.forEach((v, i) => {
      if (v === null) return;
      const before = i > 0 && values[i - 1] !== null;
      path += `${before ? "L" : "M"}${shown.x(i).toFixed(1)} ${shown.y(v).toFixed(1)}`;
      if (!before && (i + 1 === values.length || values[i + 1] === null)) {
        const at = `translate(${shown.x(i)} ${shown.y(v)}) rotate(45)`;
        explorer.make("rect", { x: -4, y: -4, width: 8, height: 8, fill: colour, transform: at }, svg);
      }
    });
    explorer.make("path", { d: path, fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-linejoin": "round", ...dashes }, svg);
  }

  function key(x, label, colour, dashes, text) {
    if (!label) return;
    explorer.make("line", { x1: x, x2: x + 22, y1: 10, y2: 10, stroke: colour, "stroke-width": 2.2, ...dashes }, svg);
    explorer.make("text", { x: x + 28, y: 14, ...text }, svg, label);
  }

  function ticks(layers) {
    const step = [1, 2, 5, 10, 20, 50, 100].find((s) => layers / s <= 6) || 100;
    return Array.from({ length: Math.floor(layers / step) + 1 }, (_, i) => i * step);
  }

  function press(event) {
    if (!shown || !shown.answer) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    const share = (at - LEFT) / (WIDTH - LEFT - RIGHT);
    const layer = Math.round(Math.max(0, Math.min(1, share)) * shown.answer.layers);
    window.dash_clientside.set_props("layer", { value: layer });
  }
})();
