// The mask of each attention, with the reason for every masked cell.

import {css, maskColours} from "./colour.js";
import {choice, disclosure, html, scrollBox, table, tokenAt} from "./dom.js";
import {labelledHeatmap} from "./heatmap.js";
import {REASONS} from "./mask_reasons.js";
import {saveButton} from "./save.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

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
    body.replaceChildren(
      ...picture(reasons, queries, keys),
      legend(reasons),
      ...blindQueries(mask, queries),
      disclosure("Mask as a table", () => reasonTable(reasons, queries, keys.length)),
    );
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
  const reasonOf = (i, j) => REASONS[reasons[i * keys.length + j]];
  const readout = html("p", {class: "readout", role: "status"}, "Click a cell to read its reason.");
  const pick = (i, j) => {
    if (j < 0) return;
    const {name, text} = reasonOf(i, j);
    readout.textContent = `${tokenAt(queries, i)} → ${tokenAt(keys, j)}: ${name}; ${text}.`;
  };
  const text = (i, j) => reasonOf(i, j).letter;
  const holder = html("div", {});
  const draw = () => labelledHeatmap({label, bytes: reasons, colours: maskColours(), queries, keys, text, pick});
  onTheme(holder, () => holder.replaceChildren(draw()));
  return [readout, scrollBox("Mask", holder)];
}

function legend(reasons) {
  const counts = REASONS.map((_, number) => reasons.reduce((sum, reason) => sum + (reason === number), 0));
  const swatches = REASONS.map(({letter}) => html("span", {class: "swatch", "aria-hidden": "true"}, letter));
  const items = REASONS.map(({name, text}, number) =>
    counts[number] ? html("li", {}, swatches[number], html("b", {}, name), `: ${counts[number]} cells; ${text}`) : null,
  );
  const list = html("ul", {class: "legend"}, items);
  onTheme(list, () =>
    swatches.forEach((swatch, number) => {
      swatch.style.backgroundColor = css(maskColours()[number]);
    }),
  );
  return list;
}

/** Padding is expected to attend to nothing. Any other query that does is a mistake, so it is named. */
function blindQueries(mask, queries) {
  const padding = new Set(mask.padding_queries);
  const names = mask.fully_masked_queries.filter((i) => !padding.has(i)).map((i) => tokenAt(queries, i));
  const lines = [];
  if (padding.size) lines.push(html("p", {class: "note"}, `${padding.size} queries are padding and attend to no key.`));
  if (!names.length) {
    lines.push(html("p", {class: "note"}, "Every token of the text attends to at least one key."));
    return lines;
  }
  const start = `${names.length} queries are tokens and attend to no key, so attention gives them zeros`;
  return [...lines, html("p", {class: "warning"}, `${start}: ${names.join(", ")}.`)];
}

/** The keys of each query by reason, as ranges of positions. */
function reasonTable(reasons, queries, numKeys) {
  const used = REASONS.map((_, number) => number).filter((number) => reasons.includes(number));
  const rows = queries.map((_, i) => {
    const row = Array.from(reasons.subarray(i * numKeys, (i + 1) * numKeys));
    return [tokenAt(queries, i), ...used.map((number) => ranges(row, number))];
  });
  const headings = ["query", ...used.map((number) => REASONS[number].name)];
  return scrollBox("Mask as a table", table("The positions of the keys, by reason", headings, rows));
}

/** The positions of a value as ranges: "0–3, 7". */
function ranges(row, value) {
  const found = [];
  row.forEach((one, j) => {
    if (one !== value) return;
    if (found.at(-1)?.[1] === j - 1) found.at(-1)[1] = j;
    else found.push([j, j]);
  });
  return found.map(([start, end]) => (start === end ? String(start) : `${start}–${end}`)).join(", ");
}
