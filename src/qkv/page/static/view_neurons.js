// Neurons: the hidden units of the feed-forward network that are most active on this text.

import {css, inkOn, weightColours} from "./colour.js";
import {choice, disclosure, html, number, scrollBox, shorten, table, visibleToken} from "./dom.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

const MAX_LETTERS = 14;

export function neuronsView(data) {
  const layers = data.neurons.layers;
  const names = layers.map((layer) => `${layer.stack} layer ${layer.layer}`);
  const body = html("div", {});
  const show = async (index) => {
    const layer = layers[index];
    const tokens = data.sequences[layer.stack].texts;
    const [activations, ids, values] = await Promise.all(
      [layer.activations, layer.token_neurons, layer.token_values].map(unpack),
    );
    body.replaceChildren(
      neuronTable(layer, names[index], tokens, activations),
      disclosure("The strongest neurons of each token", () => tokenTable(tokens, ids, values)),
    );
  };
  show(0);
  return html("div", {class: "block"}, html("div", {class: "controls"}, choice("Layer", names, show)), body);
}

/** A line for each neuron, with the text coloured by its activation. */
function neuronTable(layer, name, tokens, activations) {
  const chips = [];
  const rows = layer.neurons.map((neuron, n) => {
    const row = tokens.map((text, t) => {
      const value = activations.value(n * tokens.length + t);
      const chip = html("span", {class: "token chip", title: number(value, 2)}, visibleToken(text));
      chips.push([chip, layer.peaks[n] > 0 ? value / layer.peaks[n] : 0]);
      return chip;
    });
    const peakToken = shorten(visibleToken(tokens[layer.peak_positions[n]]), MAX_LETTERS);
    const cells = [String(neuron), number(layer.peaks[n], 2), peakToken, html("span", {class: "chips"}, row)];
    if (layer.promotes)
      cells.push(layer.promotes[n].map((text) => shorten(visibleToken(text), MAX_LETTERS)).join("   "));
    return cells;
  });
  const headings = ["neuron", "peak", "at", "activation at each token, relative to the peak"];
  if (layer.promotes) headings.push("promotes");
  const caption = `The ${rows.length} most active of ${layer.size} neurons of ${name}`;
  const box = scrollBox("Neurons", table(caption, headings, rows));
  onTheme(box, () => colourChips(chips));
  return box;
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
