// The vectors that enter the first block: token embedding, position, and their sum.

import {signedColours} from "./colour.js";
import {disclosure, html, number, scrollBox, shorten, table, tokenAt, visibleToken} from "./dom.js";
import {drawPixels} from "./heatmap.js";
import {onTheme} from "./theme.js";
import {unpack} from "./unpack.js";

const MAX_LABELLED = 30; // rows that are high enough for the text of a token
const MAX_LETTERS = 14;
const SINUSOIDAL = "Positions are sinusoids of different wavelengths, added to the token's vector.";
const POSITIONS = {
  learned: "Positions are learned: each position has a vector of its own, which is added to the token's.",
  sinusoidal: SINUSOIDAL,
  sinusoidal_split: SINUSOIDAL,
  rotary:
    "Positions are rotary: nothing is added here. Each pair of dimensions of q and k is turned by an angle that grows " +
    "with the position; the picture shows the cosine of that angle.",
  alibi: "Positions are ALiBi: nothing is added here. Each head subtracts a multiple of the distance from its scores.",
  t5:
    "Positions are T5's relative buckets: nothing is added here. Each head adds a learned number for the distance to " +
    "its scores.",
  none: "This model has no positions.",
};

export function embeddingsView(data) {
  return data.embeddings.map((embedding) => {
    const sequence = data.sequences[embedding.sequence];
    let note = POSITIONS[embedding.position_kind];
    if (embedding.shown < embedding.width) note += ` The pictures show the first ${embedding.shown} dimensions.`;
    return html(
      "div",
      {class: "block"},
      html("h3", {}, `${sequence.label}: ${embedding.width} dimensions`),
      html("p", {class: "note"}, `${note} Colours are on a square-root scale.`),
      html(
        "div",
        {class: "row"},
        embedding.parts.map((part) => picture(part, sequence.texts)),
      ),
      disclosure("Lengths of the vectors", () => lengths(embedding, sequence.texts)),
    );
  });
}

function lengths(embedding, tokens) {
  const parts = embedding.parts.filter((part) => part.norms);
  const rows = tokens.map((text, i) => [visibleToken(text), ...parts.map((part) => number(part.norms[i]))]);
  const headings = ["token", ...parts.map((part) => part.name)];
  return scrollBox("Lengths of the vectors", table("Euclidean length of each vector", headings, rows));
}

function picture(part, tokens) {
  const [rows, columns] = part.values.shape;
  const size = number(part.values.size);
  const canvas = html("canvas", {
    class: "pixels",
    role: "img",
    "aria-label": `${part.name}: ${rows} tokens by ${columns} numbers between −${size} and ${size}`,
    style: {height: `${Math.max(rows > 1 ? 60 : 16, Math.min(rows * 12, 360))}px`},
  });
  const readout = html("p", {class: "readout", "aria-hidden": "true"}, `±${size}`);
  unpack(part.values).then((array) => {
    onTheme(canvas, () => drawPixels(canvas, array.data, rows, columns, signedColours()));
    canvas.addEventListener("mousemove", (event) => {
      const row = Math.floor((event.offsetY / canvas.clientHeight) * rows);
      const column = Math.floor((event.offsetX / canvas.clientWidth) * columns);
      if (row < 0 || row >= rows || column < 0 || column >= columns) return;
      const value = number(array.value(row * columns + column));
      readout.textContent = `${tokenAt(tokens, row)}, dimension ${column}: ${value}`;
    });
  });
  const picture = rows <= MAX_LABELLED ? html("div", {class: "with-tokens"}, rowTokens(tokens), canvas) : canvas;
  return html("figure", {}, html("figcaption", {}, part.name), picture, readout);
}

/** The tokens beside the rows of a picture. */
function rowTokens(tokens) {
  const names = tokens.map((text) => html("span", {class: "token"}, shorten(visibleToken(text), MAX_LETTERS)));
  return html("div", {class: "row-tokens", "aria-hidden": "true"}, names);
}
