// The tokens of each sequence, with ids and positions.

import {count, html, visibleToken} from "./dom.js";

export function tokensView(data) {
  return Object.entries(data.sequences).map(([name, sequence]) =>
    html(
      "div",
      {class: "block"},
      html("h3", {}, `${sequence.label}: ${count(sequence.texts.length, "token")}`),
      html(
        "ol",
        {class: "tokens", "aria-label": `Tokens of the ${name}`},
        sequence.texts.map((text, i) =>
          html(
            "li",
            {class: sequence.special[i] ? "special" : null},
            html("span", {class: "token"}, visibleToken(text)),
            html(
              "span",
              {class: "id", "aria-label": `position ${i}, id ${sequence.ids[i]}`},
              `${i} · #${sequence.ids[i]}`,
            ),
          ),
        ),
      ),
    ),
  );
}
