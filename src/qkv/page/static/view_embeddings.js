// The vectors that enter the first block: token embedding, position, and their sum.

import {signedColours} from "./colour.js";
import {disclosure, html, number, scrollBox, table, visibleToken} from "./dom.js";
import {drawPixels} from "./heatmap.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

const POSITIONS = {
  learned: "Positions are learned: each position has a vector of its own, which is added to the token's.",
  sinusoidal: "Positions are sinusoids of different wavelengths, added to the token's vector.",
  sinusoidal_split:
    "Positions are sinusoids of different wavelengths (sines first, then cosines), added to the token's vector.",
  rotary:
    "Positions are rotary: nothing is added here. Each pair of dimensions of q and k is turned by an angle that grows with the position; the picture shows the cosine of that angle.",
  alibi: "Positions are ALiBi: nothing is added here. Each head subtracts a multiple of the distance from its scores.",
  t5: "Positions are T5's relative buckets: nothing is added here. Each head adds a learned number for the distance to its scores.",
  none: "This model has no positions.",
};

export function embeddingsView(data) {
  return data.embeddings.map((one) =>
    html(
      "div",
      {class: "block"},
      html("h3", {}, `${data.sequences[one.sequence].label}: ${one.width} dimensions`),
      html(
        "p",
        {class: "note"},
        POSITIONS[one.position_kind],
        one.shown < one.width ? ` The pictures show the first ${one.shown} dimensions.` : "",
        " Colours are on a square-root scale.",
      ),
      html(
        "div",
        {class: "row"},
        one.parts.map((part) => picture(part, data.sequences[one.sequence].texts)),
      ),
      disclosure("Lengths of the vectors", () =>
        scrollBox(
          "Lengths of the vectors",
          table(
            "Euclidean length of each vector",
            ["token", ...one.parts.filter((part) => part.norms).map((part) => part.name)],
            data.sequences[one.sequence].texts.map((text, i) => [
              visibleToken(text),
              ...one.parts.filter((part) => part.norms).map((part) => number(part.norms[i], 3)),
            ]),
          ),
        ),
      ),
    ),
  );
}

function picture(part, tokens) {
  const [rows, columns] = part.values.shape;
  const canvas = html("canvas", {
    class: "pixels",
    role: "img",
    "aria-label": `${part.name}: ${rows} tokens by ${columns} numbers between −${number(part.values.size)} and ${number(part.values.size)}`,
    style: {height: `${Math.max(60, Math.min(rows * 12, 360))}px`},
  });
  const readout = html("p", {class: "readout", "aria-hidden": "true"}, `±${number(part.values.size)}`);
  unpack(part.values).then((array) => {
    onTheme(canvas, () => drawPixels(canvas, array.data, rows, columns, signedColours()));
    canvas.addEventListener("mousemove", (event) => {
      const row = Math.min(rows - 1, Math.floor((event.offsetY / canvas.clientHeight) * rows));
      const column = Math.min(columns - 1, Math.floor((event.offsetX / canvas.clientWidth) * columns));
      if (row >= 0 && column >= 0)
        readout.textContent = `${visibleToken(tokens[row])}, dimension ${column}: ${number(array.value(row * columns + column))}`;
    });
  });
  return html("figure", {}, html("figcaption", {}, part.name), canvas, readout);
}
