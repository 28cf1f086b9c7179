// Beam search as a tree: every candidate of every step, which were kept, and why the search stopped.

import {disclosure, html, number, scrollBox, shorten, svg, table, visibleToken} from "./dom.js";
import {saveButton} from "./save.js";

const COLUMN = 112,
  ROW = 30,
  LEFT = 70,
  TOP = 30;

export function searchView(data) {
  const search = data.search;
  const picture = tree(search);
  return html(
    "div",
    {class: "block"},
    html(
      "p",
      {},
      `Beam search with ${search.beam} beams ran for ${search.steps.length} steps. It stopped because ${search.stop_reason}`,
    ),
    html(
      "div",
      {class: "controls"},
      html(
        "span",
        {class: "note"},
        "Solid: kept. Dashed: pruned. A box with a double border: finished. Bold line: the best hypothesis.",
      ),
      saveButton(() => picture, "beam-search"),
    ),
    scrollBox("Beam search tree", picture),
    scrollBox(
      "Finished hypotheses",
      table(
        "Finished hypotheses, best first",
        ["text", "log-probability", "tokens", "normalized score"],
        search.hypotheses.map((one) => [
          visibleToken(one.text),
          number(one.logprob, 4),
          `${one.length}`,
          number(one.score, 4),
        ]),
      ),
    ),
    disclosure("Every step as a table", () =>
      scrollBox(
        "Every step as a table",
        table(
          "Candidates, best first",
          ["step", "continues", "token", "log-probability", "fate"],
          search.steps.flatMap((step, s) =>
            step.map((one) => [
              `${s + 1}`,
              one.parent === null ? "start" : prefix(search, s, one),
              visibleToken(one.text),
              number(one.score, 4),
              fate(one),
            ]),
          ),
        ),
      ),
    ),
  );
}

function fate(one) {
  if (one.ended) return one.kept ? "finished" : "pruned (ends, but not among the best)";
  return one.kept ? "kept" : "pruned";
}

function prefix(search, step, one) {
  const words = [];
  for (let s = step - 1, parent = one.parent; s >= 0 && parent !== null; s--) {
    words.unshift(search.steps[s][parent].text);
    parent = search.steps[s][parent].parent;
  }
  return visibleToken(words.join(""));
}

function tree(search) {
  const most = Math.max(...search.steps.map((step) => step.length));
  const width = LEFT + search.steps.length * COLUMN + 10,
    height = TOP + most * ROW + 10;
  const best = new Set();
  for (let s = search.best.step, n = search.best.index; s >= 0 && n !== null; s--) {
    best.add(`${s}.${n}`);
    n = search.steps[s][n].parent;
  }
  const x = (s) => LEFT + s * COLUMN,
    y = (n) => TOP + n * ROW;
  const edges = [],
    boxes = [];
  search.steps.forEach((step, s) => {
    boxes.push(svg("text", {x: x(s) + 44, y: 16, class: "step-number", "text-anchor": "middle"}, `step ${s + 1}`));
    step.forEach((one, n) => {
      const from = one.parent === null ? [LEFT - 24, TOP + 11] : [x(s - 1) + 88, y(one.parent) + 11];
      const onBest = best.has(`${s}.${n}`);
      const style = `edge ${one.kept ? "kept" : "pruned"}${onBest ? " best" : ""}`;
      const middle = (from[0] + x(s)) / 2;
      edges.push(
        svg("path", {
          d: `M${from[0]} ${from[1]} C${middle} ${from[1]} ${middle} ${y(n) + 11} ${x(s)} ${y(n) + 11}`,
          class: style,
        }),
      );
      boxes.push(
        svg(
          "g",
          {class: `node ${one.kept ? "kept" : "pruned"}${onBest ? " best" : ""}`},
          svg("title", {}, `${visibleToken(one.text)}: log-probability ${number(one.score, 4)}, ${fate(one)}`),
          svg("rect", {x: x(s), y: y(n), width: 88, height: 22, rx: 4}),
          one.ended && one.kept ? svg("rect", {x: x(s) + 2.5, y: y(n) + 2.5, width: 83, height: 17, rx: 2.5}) : null,
          svg("text", {x: x(s) + 7, y: y(n) + 15, class: "token"}, shorten(visibleToken(one.text), 6)),
          svg("text", {x: x(s) + 82, y: y(n) + 15, class: "score", "text-anchor": "end"}, number(one.score, 2)),
        ),
      );
    });
  });
  boxes.push(svg("text", {x: 4, y: TOP + 15, class: "step-number"}, "start"));
  return svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      class: "tree",
      "aria-label": `Beam search: ${search.steps.length} steps with up to ${most} candidates. The best hypothesis is ${search.hypotheses[0]?.text ?? "none"}.`,
    },
    edges,
    boxes,
  );
}
