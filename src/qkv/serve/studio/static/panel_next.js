// The distribution over the next token, or over labels, with live temperature, top-k and top-p.

import {choice, html, number, scrollBox, shorten, table, tokenAt, visibleToken} from "./page/dom.js";
import {unpack} from "./page/unpack.js";
import {distribution, entropy} from "./distribution.js";

const NUM_SHOWN = 25;
const MAX_LETTERS = 24;

export function nextPanel({data, info, state, update}) {
  const next = data.next;
  if (!next) return html("p", {}, `This model has a ${info.head} head, which has no distribution over tokens or labels.`);
  const body = html("div", {"aria-live": "polite"});
  const settings = {temperature: state.temperature, topK: state.topK, topP: state.topP};
  let logits = null;
  const draw = () => logits && body.replaceChildren(...results(next, logits, settings, info, data, update));
  unpack(next.logits).then((array) => {
    logits = Array.from(array.data);
    draw();
  });
  const set = (name) => (value) => {
    settings[name] = value;
    draw();
    update({[name]: value}, {quiet: true});
  };
  return html(
    "div",
    {class: "block"},
    heading(data, next, update),
    next.multi_label
      ? null
      : html(
          "div",
          {class: "controls"},
          slider("Temperature", 0, 2, 0.05, settings.temperature, set("temperature")),
          slider("Top-k (0: off)", 0, 50, 1, settings.topK, set("topK")),
          slider("Top-p", 0.05, 1, 0.05, settings.topP, set("topP")),
        ),
    body,
  );
}

function heading(data, next, update) {
  if (next.position === null) return html("h3", {}, next.predicts);
  const tokens = data.sequences[next.sequence].texts;
  const names = tokens.map((_, i) => tokenAt(tokens, i));
  const menu = choice(next.predicts, names, (position) => update({position}), next.position);
  menu.lastChild.dataset.state = "position"; // the link has it under its own name
  return html("div", {class: "controls"}, menu);
}

function slider(label, min, max, step, value, change) {
  const shown = html("output", {}, String(value));
  const input = html("input", {
    type: "range",
    min,
    max,
    step,
    value,
    oninput: () => {
      shown.textContent = input.value;
      change(Number(input.value));
    },
  });
  return html("label", {class: "choice slider"}, html("span", {}, label), input, shown);
}

function results(next, logits, settings, info, data, update) {
  const found = next.multi_label ? sigmoids(logits, next) : distribution(scaled(logits, next), settings);
  const sampled = found.probabilities;
  const rows = next.texts.slice(0, NUM_SHOWN).map((text, i) => [
    tokenCell(text, next, info, data, update),
    String(next.ids[i]),
    number(logits[i]),
    number(found.plain[i], 4),
    i < found.kept ? bar(sampled[i]) : html("span", {class: "cut"}, "cut off"),
  ]);
  const headings = [next.kind, "id", "logit", "softmax", next.multi_label ? "probability" : "sampled with"];
  const shown = `${Math.min(NUM_SHOWN, logits.length)} of ${logits.length.toLocaleString("en")} ${next.kind}s`;
  const summary = next.multi_label
    ? "Each label has a probability of its own: the sigmoid of its logit."
    : `${found.kept.toLocaleString("en")} of ${logits.length.toLocaleString("en")} ${next.kind}s can be sampled; ` +
      `the entropy is ${number(entropy(sampled), 2)} bits (${number(entropy(found.plain), 2)} without the settings).`;
  return [html("p", {class: "readout"}, summary), scrollBox("Probabilities", table(shown, headings, rows))];
}

/** A classifier divides its logits by the temperature with which it was calibrated. */
function scaled(logits, next) {
  return next.temperature === 1 ? logits : logits.map((logit) => logit / next.temperature);
}

function sigmoids(logits, next) {
  const probabilities = scaled(logits, next).map((logit) => 1 / (1 + Math.exp(-logit)));
  return {plain: probabilities, kept: logits.length, probabilities};
}

/** A decoder can continue the text with a token. */
function tokenCell(text, next, info, data, update) {
  const shown = shorten(visibleToken(text), MAX_LETTERS);
  const isLast = next.position === data.sequences[next.sequence]?.texts.length - 1;
  if (info.family !== "decoder" || next.kind !== "token" || !isLast) return html("span", {class: "token"}, shown);
  const append = () => update({text: (value) => value + text, position: null});
  const label = `Append ${shown} to the text`;
  return html("button", {type: "button", class: "link token", "aria-label": label, onclick: append}, shown);
}

function bar(probability) {
  return html(
    "span",
    {class: "bar"},
    html("i", {style: {width: `${(100 * probability).toFixed(1)}%`}}),
    html("b", {}, number(probability, 4)),
  );
}
