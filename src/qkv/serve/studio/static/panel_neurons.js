// Neurons and sparse features: the most active ones on this text, and the example texts that excite one of them most.

import {html, number, scrollBox, table, visibleToken} from "./page/dom.js";
import {neuronsView, tokenChips} from "./page/view_neurons.js";
import {post} from "./server.js";

const FEATURES = "The list of layers ends with the sparse autoencoders.";
const NO_FEATURES = "To see sparse features, give a trained autoencoder: qkv studio MODEL --autoencoder FILE.";

export function neuronsPanel({data, info, request, fail, signal, side}) {
  const texts = html("textarea", {id: `examples-${side}`, rows: 5, spellcheck: "false"}, info.examples.join("\n"));
  const body = html("div", {class: "examples", role: "status"}, "Choose a neuron above to see its top examples.");
  const pick = async (layer, unit) => {
    const site = layer.autoencoder ?? `${layer.stack}.${layer.layer}.mlp_post`;
    const lines = texts.value.split("\n").filter((line) => line.trim());
    try {
      const found = await post("examples", {...request, views: [], site, unit, texts: lines}, signal);
      body.replaceChildren(...examples(found, layer, unit));
    } catch (error) {
      fail(error);
    }
  };
  return html(
    "div",
    {},
    neuronsView(data, pick),
    html("p", {class: "note"}, info.autoencoders.length ? FEATURES : NO_FEATURES),
    body,
    html("div", {class: "field"}, html("label", {for: texts.id}, "Example texts, one in each line"), texts),
  );
}

function examples(found, layer, unit) {
  const name = `${layer.autoencoder ? "Feature" : "Neuron"} ${unit}`;
  const peak = found.examples[0]?.value ?? 0;
  const rows = found.examples.map((one) => [
    number(one.value, 2),
    visibleToken(one.tokens[one.offset]),
    tokenChips(one.tokens, one.values, peak),
  ]);
  const active = `It is active at ${number(100 * found.active_fraction, 1)} % of the tokens of ${found.num_texts} texts.`;
  const list = (texts) => texts.map(visibleToken).join("   ");
  return [
    html("h3", {}, `${name}: top examples`),
    html("p", {class: "note"}, active),
    found.promoted ? html("p", {class: "note"}, `Raises the logits of: ${list(found.promoted)}`) : null,
    found.suppressed ? html("p", {class: "note"}, `Lowers the logits of: ${list(found.suppressed)}`) : null,
    scrollBox("Top examples", table("The strongest token of each text", ["activation", "at", "text"], rows)),
  ].filter(Boolean);
}
