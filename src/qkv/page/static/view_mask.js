// The mask of each attention, with the reason for every masked cell.

import {choice, html, scrollBox, visibleToken} from "./dom.js";
import {labelledHeatmap} from "./heatmap.js";
import {REASONS} from "./mask_reasons.js";
import {saveButton} from "./save.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

// Positions on the colour scale. Masked cells are light; their letter names the reason.
const VISIBLE_LEVEL = 150,
  MASKED_LEVEL = 0;

export function maskView(data) {
  const masks = data.attention.flatMap((attention) => attention.masks.map((mask) => ({attention, mask})));
  const body = html("div", {});
  const names = masks.map(
    ({attention, mask}) =>
      `${attention.title}${attention.masks.length > 1 ? `, layers ${mask.layers.join(", ")}` : ""}`,
  );
  const show = async (index) => {
    const {attention, mask} = masks[index];
    const reasons = (await unpack(mask.reasons)).data;
    const queries = data.sequences[attention.queries].texts,
      keys = data.sequences[attention.keys].texts;
    const counts = REASONS.map((_, reason) => reasons.reduce((sum, one) => sum + (one === reason), 0));
    const picture = html("div", {});
    const bytes = Uint8Array.from(reasons, (reason) => (reason ? MASKED_LEVEL : VISIBLE_LEVEL));
    onTheme(picture, () =>
      picture.replaceChildren(
        labelledHeatmap({
          label: `Mask, ${queries.length} queries by ${keys.length} keys: ${counts[0]} of ${reasons.length} pairs are visible`,
          bytes,
          queries,
          keys,
          text: (i, j) => REASONS[reasons[i * keys.length + j]].letter || "●",
        }),
      ),
    );
    const blind = mask.blind_queries;
    body.replaceChildren(
      scrollBox("Mask", picture),
      html(
        "ul",
        {class: "legend"},
        REASONS.map((reason, n) =>
          counts[n]
            ? html(
                "li",
                {},
                html("b", {}, `${n ? reason.letter : "●"} ${reason.name}`),
                `: ${counts[n]} cells; ${reason.text}`,
              )
            : null,
        ),
      ),
      html(
        "p",
        {class: blind.length ? "warning" : "note"},
        blind.length
          ? `${blind.length} queries attend to no key, so attention gives them zeros: ${blind.map((i) => `${visibleToken(queries[i])} (position ${i})`).join(", ")}.`
          : "Every query attends to at least one key.",
      ),
    );
  };
  const first = Math.max(
    0,
    masks.findIndex(({mask}) => mask.num_masked > 0),
  );
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
