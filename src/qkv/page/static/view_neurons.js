// Neurons: the hidden units of the feed-forward network that are most active on this text.

import {css, inkOn, weightColours} from "./colour.js";
import {choice, disclosure, html, number, scrollBox, shorten, table, visibleToken} from "./dom.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

export function neuronsView(data) {
  const layers = data.neurons.layers;
  const body = html("div", {});
  const show = async (index) => {
    const layer = layers[index],
      tokens = data.sequences[layer.stack].texts;
    const activations = await unpack(layer.activations);
    const [ids, values] = [await unpack(layer.token_neurons), await unpack(layer.token_values)];
    const perToken = ids.shape[1];
    const spans = [];
    const rows = layer.neurons.map((neuron, n) => {
      const chips = tokens.map((text, t) => {
        const value = activations.value(n * tokens.length + t);
        const chip = html(
          "span",
          {class: "token chip", title: `${visibleToken(text)}: ${number(value, 2)}`},
          visibleToken(text),
        );
        spans.push([chip, layer.peaks[n] > 0 ? value / layer.peaks[n] : 0]);
        return chip;
      });
      return [
        `${neuron}`,
        number(layer.peaks[n], 2),
        visibleToken(tokens[layer.peak_positions[n]]),
        html("span", {class: "chips"}, chips),
        ...(layer.promotes ? [layer.promotes[n].map((text) => shorten(visibleToken(text), 14)).join("   ")] : []),
      ];
    });
    body.replaceChildren(
      scrollBox(
        "Neurons",
        table(
          `The ${layer.neurons.length} most active of ${layer.size} neurons of ${layer.stack} layer ${layer.layer}; the colour is relative to the peak of each`,
          ["neuron", "peak", "at", "activation at each token", ...(layer.promotes ? ["promotes"] : [])],
          rows,
        ),
      ),
      disclosure("The strongest neurons of each token", () =>
        scrollBox(
          "The strongest neurons of each token",
          table(
            "Neuron and activation, strongest first",
            ["token", ...Array.from({length: perToken}, (_, k) => `${k + 1}`)],
            tokens.map((text, t) => [
              visibleToken(text),
              ...Array.from(
                {length: perToken},
                (_, k) => `${ids.data[t * perToken + k]}: ${number(values.data[t * perToken + k], 2)}`,
              ),
            ]),
          ),
        ),
      ),
    );
    onTheme(body, () => {
      const colours = weightColours();
      for (const [chip, fraction] of spans) {
        const colour = colours[Math.round(255 * Math.max(0, Math.min(1, fraction)))];
        chip.style.backgroundColor = css(colour);
        chip.style.color = inkOn(colour);
      }
    });
  };
  show(0);
  return html(
    "div",
    {class: "block"},
    choice(
      "Layer",
      layers.map((layer) => `${layer.stack} layer ${layer.layer}`),
      show,
    ),
    body,
  );
}
