// The logit lens: what the model would predict if it stopped after each layer.

import {css, inkOn, weightColours} from "./colour.js";
import {html, number, scrollBox, shorten, tokenAt, visibleToken} from "./dom.js";
import {roving} from "./roving.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

const MAX_LETTERS = 9;

export function lensView(data) {
  const holder = html("div", {class: "block"});
  loadLens(data.lens).then((lens) => fillLens(holder, lens, data.sequences[data.lens.sequence].texts));
  return holder;
}

/** The arrays of the lens, and functions that read them: l is a layer, t a position. */
async function loadLens(lens) {
  const arrays = [lens.top_ids, lens.top_probs, lens.target_probs, lens.target_ranks];
  const [ids, probs, targetProbs, targetRanks] = await Promise.all(arrays.map(unpack));
  const [numLayers, numPositions, numTokens] = ids.shape;
  const at = (l, t) => l * numPositions + t;
  return {
    numLayers,
    layers: lens.layers,
    targetName: lens.target_name,
    targets: lens.target_ids,
    word: (id) => visibleToken(lens.vocabulary[id] ?? `#${id}`),
    top: (l, t) =>
      Array.from({length: numTokens}, (_, k) => ({
        id: ids.data[at(l, t) * numTokens + k],
        prob: probs.data[at(l, t) * numTokens + k],
      })),
    targetProb: (l, t) => targetProbs.data[at(l, t)],
    targetRank: (l, t) => targetRanks.data[at(l, t)] + 1,
  };
}

function fillLens(holder, lens, tokens) {
  const readout = html("div", {class: "readout tall", role: "status"}, "Choose a cell to see its best tokens.");
  const rows = Array.from({length: lens.numLayers}, (_, l) =>
    tokens.map((_, t) => {
      const show = () => {
        readout.textContent = describeCell(lens, l, t, tokenAt(tokens, t));
      };
      return lensCell(lens, l, t, show);
    }),
  );
  roving(rows);
  const head = [html("th", {scope: "col"}, "input"), tokens.map((text) => columnHeading(text))];
  const body = rows.map((row, l) =>
    html(
      "tr",
      {},
      html("th", {scope: "row"}, lens.layers[l]),
      row.map((cell) => html("td", {}, cell)),
    ),
  );
  const foot = [
    html("th", {scope: "row"}, lens.targetName),
    lens.targets.map((id) => html("td", {class: "token", title: lens.word(id)}, shorten(lens.word(id), MAX_LETTERS))),
  ];
  const note =
    "The colour is the probability of the best token. " +
    `A frame marks the cells whose best token is the ${lens.targetName}.`;
  holder.append(
    readout,
    scrollBox(
      "Logit lens",
      html(
        "table",
        {class: "lens"},
        html("caption", {}, "Best token after each layer"),
        html("thead", {}, html("tr", {}, head)),
        html("tbody", {}, body),
        html("tfoot", {}, html("tr", {}, foot)),
      ),
    ),
    html("p", {class: "note"}, note),
  );
  onTheme(holder, () => colourCells(lens, rows));
}

function columnHeading(text) {
  const shown = visibleToken(text);
  return html("th", {scope: "col", class: "token", title: shown}, shorten(shown, MAX_LETTERS));
}

function lensCell(lens, l, t, show) {
  const best = lens.top(l, t)[0];
  const isHit = best.id === lens.targets[t];
  const hit = isHit ? `, the ${lens.targetName}` : "";
  const label = `${lens.word(best.id)} ${number(best.prob)}${hit}. ${lens.layers[l]}, position ${t}`;
  const attributes = {type: "button", class: isHit ? "cell hit" : "cell", onclick: show, onfocus: show};
  return html("button", {...attributes, "aria-label": label}, shorten(lens.word(best.id), MAX_LETTERS));
}

function describeCell(lens, l, t, token) {
  const best = lens.top(l, t).map(({id, prob}) => `${lens.word(id)} ${number(prob)}`);
  const target = `${lens.targetName} ${lens.word(lens.targets[t])}: ${number(lens.targetProb(l, t))}`;
  return `${lens.layers[l]} at ${token}: ${best.join(" · ")}. The ${target}, rank ${lens.targetRank(l, t)}.`;
}

function colourCells(lens, rows) {
  const colours = weightColours();
  rows.forEach((row, l) =>
    row.forEach((cell, t) => {
      const colour = colours[Math.round(255 * Math.min(1, lens.top(l, t)[0].prob))];
      cell.style.backgroundColor = css(colour);
      cell.style.color = inkOn(colour);
    }),
  );
}
