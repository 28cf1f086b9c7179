// The grid of layers × heads of each attention. A head opens in a dialog.

import {weightColours} from "./colour.js";
import {html, number, visibleToken} from "./dom.js";
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

export function attentionView(data) {
  return data.attention.map((attention) => grid(data, attention));
}

function grid(data, attention) {
  const queries = data.sequences[attention.queries].texts,
    keys = data.sequences[attention.keys].texts;
  const buttons = attention.layers.map((layer, y) =>
    attention.heads.map((head, x) => {
      const canvas = html("canvas", {
        "aria-hidden": "true",
        class: "pixels",
        style: {aspectRatio: `${keys.length} / ${queries.length}`},
      });
      const summary = attention.summaries[y][x];
      const [i, j] = summary.strongest;
      const caption = `${layer}.${head}${summary.role ? ` ${SHORT_ROLES[summary.role]}` : ""}`;
      const label =
        `${caption}. ${attention.title}, layer ${layer}, head ${head}.${summary.role ? ` Most of its weight is on the ${summary.role}.` : ""} Mean entropy ${number(summary.entropy, 2)} bits. ` +
        `Strongest: ${visibleToken(queries[i])} to ${visibleToken(keys[j])}, ${number(summary.strongest_weight, 2)}.`;
      return html(
        "button",
        {
          type: "button",
          class: "head",
          "aria-label": label,
          title: label,
          onclick: () => openHead(data, attention, y, x),
        },
        canvas,
        html("span", {class: "caption", "aria-hidden": "true"}, caption),
      );
    }),
  );
  roving(buttons);
  buttons.forEach((row, y) =>
    row.forEach(async (button, x) => {
      const [bytes, reasons] = [await headBytes(attention, y, x), await maskReasons(attention, y)];
      const small = shrink(bytes, queries.length, keys.length, MAX_THUMBNAIL);
      const masked = shrink(
        reasons.data.map((reason) => (reason ? 0 : 1)),
        queries.length,
        keys.length,
        MAX_THUMBNAIL,
      ).bytes;
      onTheme(button, () =>
        drawPixels(button.firstChild, small.bytes, small.rows, small.columns, weightColours(), (i) => masked[i] === 0),
      );
    }),
  );
  return html(
    "div",
    {class: "block"},
    html("h3", {}, attention.title),
    html(
      "p",
      {class: "note"},
      attention.description,
      attention.summaries.flat().some((one) => one.role)
        ? " A word beside the number of a head names where more than half of its weight lies: on the previous, the first or special tokens, or on the token after an earlier copy of the query (induction)."
        : "",
    ),
    html(
      "div",
      {
        class: "heads",
        role: "group",
        "aria-label": `${attention.title}: layers by heads`,
        style: {
          gridTemplateColumns: `max-content repeat(${attention.heads.length}, minmax(44px, ${attention.heads.length > 6 ? 96 : 150}px))`,
        },
      },
      buttons.map((row, y) => [html("span", {class: "layer"}, `layer ${attention.layers[y]}`), ...row]),
    ),
  );
}
