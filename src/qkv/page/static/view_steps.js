// The attention of one query, step by step: a table with one line for each key, and the vectors behind it.

import {norm} from "./attention_steps.js";
import {signedColours} from "./colour.js";
import {html, number, scrollBox, shorten, table, tokenAt, visibleToken, withPosition} from "./dom.js";
import {signedBytes, strip} from "./heatmap.js";
import {REASONS} from "./mask_reasons.js";
import {roving} from "./roving.js";

const MAX_MIXED = 5;
const MAX_LETTERS = 20;

/** The table of query i. `pick(j)` is called when the reader chooses key j. */
export function stepsTable(head, i, chosen, pick) {
  const steps = head.steps(i);
  const query = tokenAt(head.queries, i);
  const isMasked = head.keys.some((_, j) => head.reason(i, j));
  const headings = ["key", "q · k", `× ${number(head.scale, 4)}`];
  if (steps.bias) headings.push("+ bias");
  if (isMasked) headings.push("+ mask");
  headings.push("softmax: weight", "‖weight · v‖");
  const buttons = head.keys.map((text, j) => [keyButton(text, j, j === chosen, () => pick(j))]);
  roving(buttons, chosen);
  const rows = head.keys.map((_, j) => {
    const cells = [buttons[j], number(steps.dots[j]), number(steps.scaled[j])];
    if (steps.bias) cells.push(number(steps.bias[j]));
    if (isMasked) cells.push(head.reason(i, j) ? `−∞ ${REASONS[head.reason(i, j)].name}` : "0");
    return [...cells, weightBar(steps.weights[j]), number(steps.weights[j] * norm(steps.values[j]))];
  });
  const scale = head.scale === 1 ? "This model does not scale its scores." : `The scale is 1/√${steps.q.length}.`;
  return [
    html("h3", {}, `${query} step by step`),
    html("p", {class: "formula"}, formula(head, i, chosen)),
    scrollBox("Numbers step by step", table(`The query ${query} with each key. ${scale}`, headings, rows)),
  ];
}

function keyButton(text, j, isChosen, onclick) {
  const shown = visibleToken(text);
  const attributes = {type: "button", class: "link token", "aria-pressed": isChosen ? "true" : "false", onclick};
  return html("button", {...attributes, title: shown}, `${j}: ${shorten(shown, MAX_LETTERS)}`);
}

function weightBar(weight) {
  const bar = html("i", {style: {width: `${(100 * weight).toFixed(1)}%`}});
  return html("span", {class: "bar"}, bar, html("b", {}, number(weight, 4)));
}

/** The way from q · k to the weight of one key, in numbers. */
function formula(head, i, j) {
  const steps = head.steps(i);
  const reason = head.reason(i, j);
  if (reason) {
    return `${tokenAt(head.keys, j)} is masked (${REASONS[reason].name}): its score is −∞ and its weight is 0.`;
  }
  const bias = steps.bias ? `; with the bias ${number(steps.scores[j])}` : "";
  const largest = number(Math.max(...steps.scores));
  return (
    `q · k = ${number(steps.dots[j])}; scaled ${number(steps.scaled[j])}${bias}; softmax: ` +
    `e^(${number(steps.scores[j])} − ${largest}) / ${number(steps.total)} = ${number(steps.weights[j], 4)}.`
  );
}

/** The vectors of query i and key j, and how the values mix to the output z. */
export function vectorStrips(head, i, j) {
  const steps = head.steps(i);
  const key = steps.keys[j];
  const product = steps.q.map((value, d) => value * key[d]);
  const strongest = head.keys.map((_, n) => n).sort((a, b) => steps.weights[b] - steps.weights[a]);
  const mixed = strongest.slice(0, MAX_MIXED).filter((n) => steps.weights[n] > 0.01);
  const parts = mixed.map((n) => steps.values[n].map((value) => value * steps.weights[n]));
  const pairSize = largestOf(steps.q, key);
  const mixSize = largestOf(steps.z, ...parts);
  return [
    html("h3", {}, "The vectors"),
    stripLine("q", steps.q, pairSize),
    stripLine(`k of ${keyName(head, j)}`, key, pairSize),
    stripLine("q × k: its sum is q · k", product, largestOf(product)),
    html("p", {class: "note"}, "The values of the keys, each times its weight, add up to z, the output of this head."),
    ...mixed.map((n, at) => {
      return stripLine(`${number(steps.weights[n], 2)} × v of ${keyName(head, n)}`, parts[at], mixSize);
    }),
    stripLine("z", steps.z, mixSize),
  ];
}

function keyName(head, j) {
  return withPosition(shorten(visibleToken(head.keys[j]), MAX_LETTERS), j);
}

function largestOf(...lists) {
  return Math.max(...lists.flat().map(Math.abs)) || 1;
}

function stripLine(label, values, size) {
  const picture = strip(label, signedBytes(values, size), signedColours());
  return html("div", {class: "strip-line"}, html("span", {}, label), picture, html("small", {}, `±${number(size, 2)}`));
}
