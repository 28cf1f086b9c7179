// The logit lens: what the model would predict if it stopped after each layer.

import {css, inkOn, weightColours} from "./colour.js";
import {html, number, scrollBox, shorten, visibleToken} from "./dom.js";
import {roving} from "./roving.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

export function lensView(data) {
  const lens = data.lens,
    tokens = data.sequences[lens.sequence].texts;
  const holder = html("div", {class: "block"});
  Promise.all(
    [lens.top_ids, lens.top_probs, lens.target_probs, lens.target_ranks].map((one) => (one ? unpack(one) : null)),
  ).then(([ids, probs, targetProbs, ranks]) => {
    const [layers, positions, count] = ids.shape;
    const readout = html("div", {class: "readout tall", role: "status"}, "Choose a cell to see its best tokens.");
    const word = (id) => visibleToken(lens.vocabulary[id] ?? `#${id}`);
    const target = (t) => (lens.target_ids ? lens.target_ids[t] : -1);
    const cells = [];
    const rows = Array.from({length: layers}, (_, l) => {
      const row = Array.from({length: positions}, (_, t) => {
        const at = (l * positions + t) * count;
        const hit = ids.data[at] === target(t);
        const best = Array.from(
          {length: count},
          (_, k) => `${word(ids.data[at + k])} ${number(probs.data[at + k], 3)}`,
        );
        const aim =
          target(t) >= 0 && targetProbs
            ? ` Target ${word(target(t))}: ${number(targetProbs.data[l * positions + t], 3)}, rank ${ranks.data[l * positions + t] + 1}.`
            : "";
        const button = html(
          "button",
          {
            type: "button",
            class: hit ? "cell hit" : "cell",
            onclick: () => show(),
            onfocus: () => show(),
            "aria-label": `${lens.layers[l]}, position ${t}: ${best[0]}${hit ? ", the target" : ""}`,
          },
          shorten(word(ids.data[at]), 9),
        );
        const show = () => {
          readout.textContent = `${lens.layers[l]} at ${visibleToken(tokens[t])}: ${best.join(" · ")}.${aim}`;
        };
        cells.push([button, probs.data[at]]);
        return button;
      });
      return row;
    });
    roving(rows);
    onTheme(holder, () => {
      const colours = weightColours();
      for (const [button, probability] of cells) {
        const colour = colours[Math.round(255 * Math.min(1, Math.max(0, probability)))];
        button.style.backgroundColor = css(colour);
        button.style.color = inkOn(colour);
      }
    });
    holder.append(
      readout,
      scrollBox(
        "Logit lens",
        html(
          "table",
          {class: "lens"},
          html("caption", {}, "Best token after each layer"),
          html(
            "thead",
            {},
            html(
              "tr",
              {},
              html("th", {scope: "col"}, "input"),
              tokens.map((text) => html("th", {scope: "col", class: "token"}, visibleToken(text))),
            ),
          ),
          html(
            "tbody",
            {},
            rows.map((row, l) =>
              html(
                "tr",
                {},
                html("th", {scope: "row"}, lens.layers[l]),
                row.map((button) => html("td", {}, button)),
              ),
            ),
          ),
          lens.target_ids
            ? html(
                "tfoot",
                {},
                html(
                  "tr",
                  {},
                  html("th", {scope: "row"}, lens.target_name),
                  tokens.map((_, t) => html("td", {class: "token"}, target(t) >= 0 ? word(target(t)) : "")),
                ),
              )
            : null,
        ),
      ),
      html(
        "p",
        {class: "note"},
        lens.target_ids
          ? `The colour is the probability of the best token. A frame marks the cells whose best token is the ${lens.target_name}.`
          : "",
      ),
    );
  });
  return holder;
}
