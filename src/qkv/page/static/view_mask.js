// The mask of each attention, with the reason for every masked cell.

import {choice, html, scrollBox, visibleToken} from "./dom.js";
import {labelledHeatmap} from "./heatmap.js";
import {REASONS} from "./mask_reasons.js";
import {saveButton} from "./save.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

// Positions on the colour scale. Masked cells are light; their letter names the reason.
const VISIBLE_LEVEL = 150;
const MASKED_LEVEL = 0;

export function maskView(data) {
  const masks = data.attention.flatMap((attention) => attention.masks.map((mask) => ({attention, mask})));
  const names = masks.map(({attention, mask}) => {
    return attention.masks.length > 1 ? `${attention.title}, layers ${mask.layers.join(", ")}` : attention.title;
  });
  const first = Math.max(
    0,
    masks.findIndex(({mask}) => mask.num_masked > 0),
  );
  const body = html("div", {});
  const show = async (index) => {
    const {attention, mask} = masks[index];
    const reasons = (await unpack(mask.reasons)).data;
    const queries = data.sequences[attention.queries].texts;
    const keys = data.sequences[attention.keys].texts;
    body.replaceChildren(picture(reasons, queries, keys), legend(reasons), blindQueries(mask, queries));
  };
  show(first);
  return html(
    "div",
    {class: "block"},
    html(
      "div",
      {class: "controls"},
      masks.length > 1 ? choice("Attention", names, show, first) : html("h3", {}, names[0]),
      saveButton(() => body.querySelector(".heatmap"), "mask"),
    ),
    body,
  );
}

function picture(reasons, queries, keys) {
  const numVisible = reasons.reduce((sum, reason) => sum + (reason === 0), 0);
  const size = `${queries.length} queries by ${keys.length} keys`;
  const label = `Mask, ${size}: ${numVisible} of ${reasons.length} pairs are visible`;
  const bytes = Uint8Array.from(reasons, (reason) => (reason ? MASKED_LEVEL : VISIBLE_LEVEL));
  const text = (i, j) => REASONS[reasons[i * keys.length + j]].letter;
  const holder = html("div", {});
  onTheme(holder, () => holder.replaceChildren(labelledHeatmap({label, bytes, queries, keys, text})));
  return scrollBox("Mask", holder);
}

function legend(reasons) {
  const counts = REASONS.map((_, number) => reasons.reduce((sum, reason) => sum + (reason === number), 0));
  const items = REASONS.map(({name, letter, text}, number) =>
    counts[number] ? html("li", {}, html("b", {}, `${letter} ${name}`), `: ${counts[number]} cells; ${text}`) : null,
  );
  return html("ul", {class: "legend"}, items);
}

function blindQueries(mask, queries) {
  if (!mask.blind_queries.length) return html("p", {class: "note"}, "Every query attends to at least one key.");
  const names = mask.blind_queries.map((i) => `${visibleToken(queries[i])} (position ${i})`).join(", ");
  const start = `${mask.blind_queries.length} queries attend to no key, so attention gives them zeros`;
  return html("p", {class: "warning"}, `${start}: ${names}.`);
}
