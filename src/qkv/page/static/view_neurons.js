// Neurons: the hidden units of the feed-forward network that are most active on this text.

import {css, inkOn, weightColours} from "./colour.js";
import {choice, disclosure, html, number, scrollBox, shorten, table, visibleToken} from "./dom.js";
import {roving} from "./roving.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

const MAX_LETTERS = 14;

/** `pick(layer, unit)` is called when the reader chooses a neuron; without it, neurons cannot be chosen. */
export function neuronsView(data, pick = null) {
  const layers = data.neurons.layers;
  const names = layers.map(layerName);
  const body = html("div", {});
  const show = async (index) => {
    const layer = layers[index];
    const tokens = data.sequences[layer.stack].texts;
    const [activations, ids, values] = await Promise.all(
      [layer.activations, layer.token_neurons, layer.token_values].map(unpack),
    );
    body.replaceChildren(
      neuronTable(layer, tokens, activations, pick),
      disclosure(`The strongest ${noun(layer)}s of each token`, () => tokenTable(tokens, ids, values)),
    );
  };
  show(0);
  return html("div", {class: "block"}, html("div", {class: "controls"}, choice("Layer", names, show)), body);
}

/** The neurons of a layer, or the features of a sparse autoencoder. */
function layerName(layer) {
  return layer.autoencoder ? `features of ${layer.autoencoder}` : `${layer.stack} layer ${layer.layer}`;
}

function noun(layer) {
  return layer.autoencoder ? "feature" : (layer.noun ?? "neuron");
}

/** The tokens of a text, coloured by the activation of a unit relative to its peak. */
export function tokenChips(tokens, values, peak) {
  const chips = tokens.map((text, t) => [
    html("span", {class: "token chip", title: number(values[t], 2)}, visibleToken(text)),
    peak > 0 ? values[t] / peak : 0,
  ]);
  const box = html(
    "span",
    {class: "chips"},
    chips.map(([chip]) => chip),
  );
  onTheme(box, () => colourChips(chips));
  return box;
}

/** A line for each neuron, with the text coloured by its activation. */
function neuronTable(layer, tokens, activations, pickUnit) {
  const pick = layer.noun === "expert" ? null : pickUnit; // the panel of a unit is for neurons and features
  const buttons = layer.neurons.map((neuron) => [
    html("button", {type: "button", class: "link", onclick: () => pick(layer, neuron)}, String(neuron)),
  ]);
  if (pick) roving(buttons);
  const rows = layer.neurons.map((neuron, n) => {
    const values = tokens.map((_, t) => activations.value(n * tokens.length + t));
    const peakToken = shorten(visibleToken(tokens[layer.peak_positions[n]]), MAX_LETTERS);
    const name = pick ? buttons[n] : String(neuron);
    const cells = [name, number(layer.peaks[n], 2), peakToken, tokenChips(tokens, values, layer.peaks[n])];
    if (layer.promotes)
      cells.push(layer.promotes[n].map((text) => shorten(visibleToken(text), MAX_LETTERS)).join("   "));
    return cells;
  });
  const headings = [noun(layer), "peak", "at", "activation at each token, relative to the peak"];
  if (layer.promotes) headings.push("promotes");
  const source = layer.autoencoder ? `at ${layer.site}` : `of ${layerName(layer)}`;
  const caption = `The ${rows.length} most active of ${layer.size} ${noun(layer)}s ${source}`;
  return scrollBox("Neurons", table(caption, headings, rows));
}

function colourChips(chips) {
  const colours = weightColours();
  for (const [chip, fraction] of chips) {
    const colour = colours[Math.round(255 * Math.max(0, Math.min(1, fraction)))];
    chip.style.backgroundColor = css(colour);
    chip.style.color = inkOn(colour);
  }
}

function tokenTable(tokens, ids, values) {
  const count = ids.shape[1];
  const ranks = Array.from({length: count}, (_, k) => k);
  const cell = (t, k) => `${ids.data[t * count + k]}: ${number(values.data[t * count + k], 2)}`;
  const rows = tokens.map((text, t) => [visibleToken(text), ...ranks.map((k) => cell(t, k))]);
  const headings = ["token", ...ranks.map((k) => String(k + 1))];
  const caption = "Neuron and activation, strongest first";
  return scrollBox("The strongest neurons of each token", table(caption, headings, rows));
}
