/* The page as a function of a state, its answer and a layer; and playing, which moves the layer. Knows nothing of a server. */
(function () {
  "use strict";
  const explorer = (window.explorer = window.explorer || {});
  const HOSTS = ["circuit", "circuit-beside"];
  let timer = null;

  function element(name) {
    return document.getElementById(name);
  }

  /* The answers that are on the page: one, or two beside each other, each with as many layers as it has. */
  explorer.runs = function (answer) {
    return answer ? [answer, answer.beside].filter(Boolean) : [];
  };

  explorer.depth = function (answer) {
    return Math.max(...explorer.runs(answer).map((run) => run.layers));
  };

  explorer.show = function ({ state, answer, layer, exact, tool }) {
    const runs = explorer.runs(answer);
    HOSTS.forEach((host, i) => {
      const run = runs[i] || null;
      const [figure, name] = [element(host).parentNode, element(host + "-name")];
      figure.hidden = i > 0 && !state.beside;
      name.hidden = !state.beside;
      if (figure.hidden) return void element(host).replaceChildren();
      const at = run ? Math.min(layer, run.layers) : 0;
      name.replaceChildren();
      explorer.html("b", "", run ? run.method : "no answer yet", name);
      explorer.html("span", "", !run ? "…" : exact ? "exact" : `layer ${at} of ${run.layers}`, name);
      explorer.drawCircuit(host, state, run && (exact ? run.exact : run.values[at]), run, tool);
    });
    explorer.showLegend(answer);
    explorer.showReadout(answer, layer);
    explorer.showValues(state, answer, layer);
    explorer.showErrors(answer, layer);
    explorer.showWeights(answer, layer);
    element("layer-label").textContent = exact ? "exact answer" : `layer ${layer} of ${answer ? explorer.depth(answer) : state.layers}`;
  };

  /* ------------------------------------------------------------------------------------------------ playing */

  explorer.stopPlaying = function () {
    clearInterval(timer);
    timer = null;
    element("play").textContent = "Play";
    element("play").setAttribute("aria-label", "Play the layers");
  };

  explorer.play = function (now, setLayer) {
    if (timer) return explorer.stopPlaying();
    if (!now.answer) return;
    const depth = explorer.depth(now.answer);
    let layer = now.layer >= depth ? 0 : now.layer;
    setLayer(layer);
    element("play").textContent = "Pause";
    element("play").setAttribute("aria-label", "Pause");
    timer = setInterval(() => {
      if (!now.answer || layer >= explorer.depth(now.answer)) return explorer.stopPlaying();
      layer += 1;
      setLayer(layer);
    }, Math.min(700, Math.max(50, 7000 / depth)));
  };

  explorer.playing = function () {
    return timer !== null;
  };
})();
