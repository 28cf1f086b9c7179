// Beam search as a tree: every candidate of every step, which were kept, and why the search stopped.

import {count, disclosure, html, number, scrollBox, shorten, svg, table, visibleToken} from "./dom.js";
import {saveButton} from "./save.js";

const [LEFT, TOP] = [70, 30]; // pixels, as all of these
const [COLUMN, ROW] = [144, 30]; // from one box to the next
const [WIDTH, HEIGHT] = [120, 22]; // of a box: six letters and a number such as −1,234.56
const LEGEND = "Solid: kept. Dashed: pruned. A box with a double border: finished. Bold line: the best hypothesis.";

export function searchView(data) {
  const search = data.search;
  const picture = tree(search);
  const steps = count(search.steps.length, "step");
  const summary = search.stop_reason
    ? `Beam search with ${search.beam} beams ran for ${steps}. It stopped because ${search.stop_reason}`
    : `Beam search with ${search.beam} beams: ${steps} so far.`;
  return html(
    "div",
    {class: "block"},
    html("p", {}, summary),
    html(
      "div",
      {class: "controls"},
      html("span", {class: "note"}, LEGEND),
      saveButton(() => picture, "beam-search"),
    ),
    scrollBox("Beam search tree", picture),
    hypothesesTable(search),
    disclosure("Every step as a table", () => stepsTable(search)),
  );
}

function hypothesesTable(search) {
  const headings = ["text", "log-probability", "tokens", "normalized score"];
  const rows = search.hypotheses.map((one) => {
    const text = html("span", {class: "wrap"}, visibleToken(one.text));
    return [text, number(one.logprob, 4), String(one.length), number(one.score, 4)];
  });
  return scrollBox("Finished hypotheses", table("Finished hypotheses, best first", headings, rows));
}

function stepsTable(search) {
  const headings = ["step", "continues", "token", "log-probability", "result"];
  const rows = search.steps.flatMap((step, s) =>
    step.map((one) => {
      const before = one.parent === null ? "start" : prefix(search, s, one);
      return [String(s + 1), before, visibleToken(one.text), number(one.score, 4), result(one)];
    }),
  );
  return scrollBox("Every step as a table", table("Candidates, best first", headings, rows));
}

function result(one) {
  if (one.ended) return one.kept ? "finished" : "pruned (it ends, but is not among the best)";
  return one.kept ? "kept" : "pruned";
}

/** The text before a candidate. */
function prefix(search, step, one) {
  const words = [];
  for (let s = step - 1, parent = one.parent; parent !== null; s--) {
    words.unshift(search.steps[s][parent].text);
    parent = search.steps[s][parent].parent;
  }
  return visibleToken(words.join(""));
}

/** The candidates of the best hypothesis, as "step.index". */
function bestPath(search) {
  const path = new Set();
  if (!search.best) return path;
  for (let {step, index} = search.best; index !== null; step--) {
    path.add(`${step}.${index}`);
    index = search.steps[step][index].parent;
  }
  return path;
}

function tree(search) {
  const most = Math.max(...search.steps.map((step) => step.length));
  const best = bestPath(search);
  const [edges, boxes] = [[], [svg("text", {x: 4, y: TOP + 15, class: "step-number"}, "start")]];
  search.steps.forEach((step, s) => {
    const middle = boxX(s) + WIDTH / 2;
    boxes.push(svg("text", {x: middle, y: 16, class: "step-number", "text-anchor": "middle"}, `step ${s + 1}`));
    step.forEach((one, n) => {
      const style = `${one.kept ? "kept" : "pruned"}${best.has(`${s}.${n}`) ? " best" : ""}`;
      edges.push(svg("path", {d: edgePath(one, s, n), class: `edge ${style}`}));
      boxes.push(box(one, boxX(s), boxY(n), style));
    });
  });
  const width = LEFT + search.steps.length * COLUMN + 10;
  const height = TOP + most * ROW + 10;
  const text = search.hypotheses[0]?.text ?? "none";
  const size = `${search.steps.length} steps with up to ${most} candidates`;
  const label = `Beam search: ${size}. The best hypothesis is ${text}.`;
  const attributes = {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label};
  return svg("svg", {...attributes, class: "tree"}, edges, boxes);
}

function boxX(step) {
  return LEFT + step * COLUMN;
}

function boxY(index) {
  return TOP + index * ROW;
}

function edgePath(one, s, n) {
  const [x1, y1] = one.parent === null ? [LEFT - 24, TOP] : [boxX(s - 1) + WIDTH, boxY(one.parent)];
  const [x2, y2] = [boxX(s), boxY(n) + HEIGHT / 2];
  const [start, middle] = [y1 + HEIGHT / 2, (x1 + x2) / 2];
  return `M${x1} ${start} C${middle} ${start} ${middle} ${y2} ${x2} ${y2}`;
}

function box(one, x, y, style) {
  const title = `${visibleToken(one.text)}: log-probability ${number(one.score, 4)}, ${result(one)}`;
  const inner = {x: x + 2.5, y: y + 2.5, width: WIDTH - 5, height: HEIGHT - 5, rx: 2.5};
  return svg(
    "g",
    {class: `node ${style}`},
    svg("title", {}, title),
    svg("rect", {x, y, width: WIDTH, height: HEIGHT, rx: 4}),
    one.ended && one.kept ? svg("rect", inner) : null,
    svg("text", {x: x + 7, y: y + 15, class: "token"}, shorten(visibleToken(one.text), 6)),
    svg("text", {x: x + WIDTH - 6, y: y + 15, class: "score", "text-anchor": "end"}, number(one.score, 2)),
  );
}
