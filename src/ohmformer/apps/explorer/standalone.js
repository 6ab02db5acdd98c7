/* The page of one answer, alone in its file: the slider, Play and the exact answer. */
(function () {
  "use strict";
  const explorer = window.explorer;
  const { state, answer } = JSON.parse(document.getElementById("data").textContent);
  const depth = explorer.depth(answer);
  const now = { state, answer, layer: Math.min(state.layer, depth), exact: false, tool: "watch" };
  const [slider, truth] = ["layer", "truth"].map((name) => document.getElementById(name));

  explorer.setLayer = function (layer) {
    now.layer = layer;
    slider.value = layer;
    explorer.show(now);
  };

  slider.max = depth;
  slider.addEventListener("input", () => explorer.setLayer(Number(slider.value)));
  truth.addEventListener("change", () => {
    now.exact = truth.checked;
    explorer.show(now);
  });
  document.getElementById("play").addEventListener("click", () => explorer.play(now, explorer.setLayer));
  document.addEventListener("toggle", () => explorer.showValues(state, answer, now.layer), true);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    explorer.forgetPalette();
    explorer.show(now);
  });
  explorer.setLayer(now.layer);
})();
