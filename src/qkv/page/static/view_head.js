// One head: its pattern with its mask, and its numbers step by step for one query.

import {attentionSteps, norm} from "./attention_steps.js";
import {signedColours} from "./colour.js";
import {choice, disclosure, html, number, scrollBox, table, visibleToken} from "./dom.js";
import {labelledHeatmap, signedBytes, strip} from "./heatmap.js";
import {REASONS} from "./mask_reasons.js";
import {headBytes, maskReasons} from "./patterns.js";
import {saveButton} from "./save.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

/** Show a head in a dialog; Escape closes it. */
export async function openHead(data, attention, layerIndex, headIndex) {
  const heads = attention.heads.length,
    count = attention.layers.length * heads;
  let index = layerIndex * heads + headIndex;
  const title = html("h2", {id: "head-title"}),
    body = html("div", {});
  const name = () =>
    `${attention.name}-${attention.layers[Math.floor(index / heads)]}-${attention.heads[index % heads]}`;
  const show = async () => {
    const [y, x] = [Math.floor(index / heads), index % heads];
    title.textContent = `${attention.title} · layer ${attention.layers[y]} · head ${attention.heads[x]}`;
    body.replaceChildren(await headBody(data, attention, y, x));
  };
  const step = (by) => () => {
    index = (index + by + count) % count;
    show();
  };
  const close = html("button", {type: "button", class: "quiet", onclick: () => dialog.close()}, "Close");
  const dialog = html(
    "dialog",
    {
      "aria-labelledby": "head-title",
      onclose: () => dialog.remove(),
      onclick: (event) => event.target === dialog && dialog.close(),
    },
    html(
      "header",
      {},
      title,
      html(
        "div",
        {class: "buttons"},
        count > 1 ? html("button", {type: "button", class: "quiet", onclick: step(-1)}, "← Previous head") : null,
        count > 1 ? html("button", {type: "button", class: "quiet", onclick: step(1)}, "Next head →") : null,
        saveButton(() => dialog.querySelector(".heatmap"), name),
        close,
      ),
    ),
    body,
  );
  document.body.append(dialog);
  await show();
  dialog.showModal();
  close.focus();
}

async function headBody(data, attention, layerIndex, headIndex) {
  const queries = data.sequences[attention.queries].texts,
    keys = data.sequences[attention.keys].texts;
  const bytes = await headBytes(attention, layerIndex, headIndex);
  const reasons = (await maskReasons(attention, layerIndex)).data;
  const layer = attention.layers[layerIndex],
    head = attention.heads[headIndex];
  const detail = attention.details.find((one) => one.layer === layer && one.head === head);
  const exact = detail ? await exactHead(detail, queries.length, keys.length, reasons) : null;
  const weight = (i, j) => (exact ? exact(i).weights[j] : (bytes[i * keys.length + j] / 255) ** 2);

  const map = html("div", {}),
    vectors = html("div", {class: "strips"}),
    steps = html("div", {class: "steps"}),
    readout = html("p", {class: "readout", role: "status"});
  let drawVectors;
  let selected = attention.summaries[layerIndex][headIndex].strongest[0],
    key = -1;
  const queryChoice = choice(
    "Query",
    queries.map((text, i) => `${i}: ${visibleToken(text)}`),
    (i) => select(i, -1),
    selected,
  );
  const draw = () =>
    map.replaceChildren(
      labelledHeatmap({
        room: exact ? 500 : 1000,
        label: `Attention weights, ${queries.length} queries by ${keys.length} keys`,
        bytes,
        queries,
        keys,
        selected,
        hidden: (i) => reasons[i] !== 0,
        text: (i, j) => (weight(i, j) >= 0.005 ? weight(i, j).toFixed(2).replace(/^0/, "") : ""),
        pick: select,
      }),
    );
  function select(i, j) {
    selected = i;
    key = j;
    queryChoice.lastChild.selectedIndex = i;
    const best = Array.from(keys, (_, n) => n).sort((a, b) => weight(i, b) - weight(i, a))[0];
    const shown = j >= 0 ? j : best;
    const reason = reasons[i * keys.length + shown];
    readout.textContent =
      `${visibleToken(queries[i])} → ${visibleToken(keys[shown])}: ` +
      (reason ? `masked (${REASONS[reason].name})` : `weight ${number(weight(i, shown), exact ? 4 : 3)}`);
    draw();
    drawVectors = exact
      ? () => vectors.replaceChildren(...stripParts(exact(i), shown, visibleToken(keys[shown]), keys))
      : () => {};
    drawVectors();
    steps.replaceChildren(
      ...(exact
        ? stepParts(
            exact(i),
            detail,
            keys,
            Array.from(keys, (_, n) => reasons[i * keys.length + n]),
            shown,
            visibleToken(queries[i]),
            (n) => select(i, n),
          )
        : [
            html(
              "p",
              {class: "note"},
              `This page has the weights of this head, rounded to ${number(data.rounding.pattern, 4)}. ` +
                `For its exact numbers step by step, run qkv look with --layers ${layer} --heads ${head}.`,
            ),
          ]),
    );
  }
  select(selected, key);
  onTheme(map, () => {
    draw();
    drawVectors();
  });
  return html(
    "div",
    {class: exact ? "head-body" : "head-body single"},
    exact ? null : steps,
    html(
      "div",
      {},
      html("p", {class: "note"}, describeRoles(attention.summaries[layerIndex][headIndex])),
      queryChoice,
      readout,
      scrollBox("Attention weights", map),
      html(
        "p",
        {class: "note"},
        "Each row is a query; its weights over the keys sum to 1. Blank cells are masked. Click a cell to follow its numbers.",
      ),
      vectors,
      disclosure("Weights as a table", () =>
        scrollBox(
          "Weights as a table",
          table(
            "Attention weights: a row for each query, a column for each key",
            ["query", ...keys.map(visibleToken)],
            queries.map((text, i) => [
              visibleToken(text),
              ...keys.map((_, j) => (reasons[i * keys.length + j] ? "masked" : number(weight(i, j), 3))),
            ]),
          ),
        ),
      ),
    ),
    exact ? steps : null,
  );
}

/** What the head does on this text, in one sentence. */
function describeRoles(summary) {
  const roles = Object.entries(summary.roles ?? {}).map(([name, value]) => `${name} ${number(value, 2)}`);
  return `Mean entropy ${number(summary.entropy, 2)} bits.${roles.length ? ` Mean weight on the ${roles.join(", ")}.` : ""}`;
}

/** A function that computes the steps of query i from the head's exact q, k and v. */
async function exactHead(detail, numQueries, numKeys, reasons) {
  const [q, k, v] = await Promise.all([detail.q, detail.k, detail.v].map(unpack));
  const bias = detail.bias ? await unpack(detail.bias) : null;
  const rows = (array) =>
    Array.from({length: array.shape[0]}, (_, i) =>
      Array.from(array.data.subarray(i * array.shape[1], (i + 1) * array.shape[1])),
    );
  const queries = rows(q),
    keys = rows(k),
    values = rows(v),
    computed = new Map();
  return (i) => {
    if (!computed.has(i)) {
      const at = i * numKeys;
      const steps = attentionSteps({
        q: queries[i],
        keys,
        values,
        scale: detail.scale,
        bias: bias ? Array.from(bias.data.subarray(at, at + numKeys)) : null,
        visible: keys.map((_, j) => reasons[at + j] === 0),
      });
      computed.set(i, {
        ...steps,
        q: queries[i],
        keys,
        values,
        bias: bias ? bias.data.subarray(at, at + numKeys) : null,
      });
    }
    return computed.get(i);
  };
}

function stepParts(steps, detail, keys, reasons, shown, query, pick) {
  const width = steps.q.length,
    name = visibleToken(keys[shown]);
  const hasBias = steps.bias !== null;
  const isMasked = reasons.some((reason) => reason !== 0);
  const headings = [
    "key",
    "q · k",
    `× ${number(detail.scale, 4)}`,
    ...(hasBias ? ["+ bias"] : []),
    ...(isMasked ? ["+ mask"] : []),
    "softmax: weight",
    "‖weight · v‖",
  ];
  const rows = keys.map((text, j) => [
    html(
      "button",
      {type: "button", class: "link token", "aria-pressed": j === shown, onclick: () => pick(j)},
      visibleToken(text),
    ),
    number(steps.dots[j]),
    number(steps.scaled[j]),
    ...(hasBias ? [number(steps.bias[j])] : []),
    ...(isMasked ? [reasons[j] ? `−∞ ${REASONS[reasons[j]].name}` : "0"] : []),
    html(
      "span",
      {class: "bar"},
      html("i", {style: {width: `${(100 * steps.weights[j]).toFixed(1)}%`}}),
      html("b", {}, number(steps.weights[j], 4)),
    ),
    number(steps.weights[j] * norm(steps.values[j])),
  ]);
  const formula = reasons[shown]
    ? `${name} is masked (${REASONS[reasons[shown]].name}), so its score is −∞ and its weight is 0.`
    : `q · k = ${number(steps.dots[shown])}; scaled ${number(steps.scaled[shown])}${hasBias ? `; with the bias ${number(steps.scores[shown])}` : ""}; ` +
      `softmax: e^(${number(steps.scores[shown])} − ${number(Math.max(...steps.scores))}) / ${number(steps.total)} = ${number(steps.weights[shown], 4)}.`;
  return [
    html("h3", {}, `${query} step by step`),
    html("p", {class: "formula"}, formula),
    scrollBox(
      "Numbers step by step",
      table(
        `The query ${query} with each key. The scale ${number(detail.scale, 4)} is ${detail.scale === 1 ? "1: this model does not scale" : `1/√${width}`}.`,
        headings,
        rows,
      ),
    ),
  ];
}

function stripParts(steps, shown, name, keys) {
  const colours = signedColours(),
    key = steps.keys[shown];
  const product = steps.q.map((value, d) => value * key[d]);
  const line = (label, values, size) =>
    html(
      "div",
      {class: "strip-line"},
      html("span", {}, label),
      strip(label, signedBytes(values, size), colours),
      html("small", {}, `±${number(size, 2)}`),
    );
  const size = (...lists) => Math.max(...lists.flat().map(Math.abs)) || 1;
  const order = keys
    .map((_, j) => j)
    .sort((a, b) => steps.weights[b] - steps.weights[a])
    .filter((j) => steps.weights[j] > 0.01)
    .slice(0, 5);
  const mixed = order.map((j) => steps.values[j].map((value) => value * steps.weights[j]));
  const mixSize = size(steps.z, ...mixed),
    pairSize = size(steps.q, key);
  return [
    html("h3", {}, "The vectors"),
    line("q", steps.q, pairSize),
    line(`k of ${name}`, key, pairSize),
    line("q × k, summed to q · k", product, size(product)),
    html(
      "p",
      {class: "note"},
      "The mix: the values of the keys, each times its weight, add up to z, the output of this head.",
    ),
    order.map((j, n) => line(`${number(steps.weights[j], 2)} × v of ${visibleToken(keys[j])}`, mixed[n], mixSize)),
    line("z", steps.z, mixSize),
  ].flat();
}
