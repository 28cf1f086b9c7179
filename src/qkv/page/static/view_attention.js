// The grid of layers × heads of each attention. A head opens in a dialog.

import {weightColours} from "./colour.js";
import {html, number, tokenAt} from "./dom.js";
import {drawPixels, shrink} from "./heatmap.js";
import {headBytes, maskReasons} from "./patterns.js";
import {roving} from "./roving.js";
import {onTheme} from "./theme.js";
import {openHead} from "./view_head.js";

const MAX_THUMBNAIL = 72; // pixels
const SHORT_ROLES = {
  "previous token": "previous",
  "first token": "first",
  "special tokens": "special",
  "token after an earlier copy": "induction",
};
const ROLES_NOTE =
  " A word beside the number of a head names where more than half of its weight lies: on the previous, the first or " +
  "special tokens, or on the token after an earlier copy of the query (induction).";

/**
 * `actions` is what a studio can do with a head: `isOff`, `load` and `buttons` take (attention, layer, head), and
 * `opened` gets the head that is shown, or null.
 */
export function attentionView(data, actions = {}) {
  return data.attention.map((attention) => grid(data, attention, actions));
}

function grid(data, attention, actions) {
  const queries = data.sequences[attention.queries].texts;
  const keys = data.sequences[attention.keys].texts;
  const buttons = attention.layers.map((_, y) => attention.heads.map((_, x) => headButton(data, attention, y, x, actions)));
  roving(buttons);
  buttons.forEach(async (row, y) => {
    const visible = (await maskReasons(attention, y)).data.map((reason) => (reason ? 0 : 1));
    const shown = shrink(visible, queries.length, keys.length, MAX_THUMBNAIL).bytes;
    const patterns = await Promise.all(row.map((_, x) => headBytes(attention, y, x)));
    row.forEach((button, x) => drawThumbnail(button, patterns[x], shown, queries.length, keys.length));
  });
  const hasRoles = attention.summaries.flat().some((summary) => summary.role);
  const headWidth = attention.heads.length > 6 ? 96 : 150;
  const columns = `max-content repeat(${attention.heads.length}, minmax(44px, ${headWidth}px))`;
  return html(
    "div",
    {class: "block", style: {flexBasis: `${80 + 110 * attention.heads.length}px`}}, // where blocks are side by side
    html("h3", {}, attention.title),
    html("p", {class: "note"}, attention.description, hasRoles ? ROLES_NOTE : ""),
    html(
      "div",
      {
        class: "heads",
        role: "group",
        "aria-label": `${attention.title}: layers by heads`,
        style: {gridTemplateColumns: columns},
      },
      buttons.map((row, y) => [html("span", {class: "layer"}, `layer ${attention.layers[y]}`), ...row]),
    ),
  );
}

function headButton(data, attention, y, x, actions) {
  const queries = data.sequences[attention.queries].texts;
  const keys = data.sequences[attention.keys].texts;
  const [layer, head, summary] = [attention.layers[y], attention.heads[x], attention.summaries[y][x]];
  const isOff = actions.isOff?.(attention, layer, head);
  const caption = `${layer}.${head}${isOff ? " off" : summary.role ? ` ${SHORT_ROLES[summary.role]}` : ""}`;
  const [query, key] = summary.strongest;
  const label = [
    `${caption}. ${attention.title}, layer ${layer}, head ${head}.`,
    isOff ? "It is switched off." : "",
    summary.role ? `Most of its weight is on the ${summary.role}.` : "",
    `Mean entropy ${number(summary.entropy, 2)} bits.`,
    `Strongest: ${tokenAt(queries, query)} to ${tokenAt(keys, key)}, ${number(summary.strongest_weight, 2)}.`,
  ]
    .filter(Boolean)
    .join(" ");
  const shape = {aspectRatio: `${keys.length} / ${queries.length}`};
  return html(
    "button",
    {
      type: "button",
      class: isOff ? "head off" : "head",
      "aria-label": label,
      title: label,
      onclick: () => openHead(data, attention, y, x, actions),
    },
    html("canvas", {"aria-hidden": "true", class: "pixels", style: shape}),
    html("span", {class: "caption", "aria-hidden": "true"}, caption),
  );
}

function drawThumbnail(button, bytes, shown, numQueries, numKeys) {
  const small = shrink(bytes, numQueries, numKeys, MAX_THUMBNAIL);
  onTheme(button, () => {
    drawPixels(button.firstChild, small.bytes, small.rows, small.columns, weightColours(), (i) => shown[i] === 0);
  });
}
