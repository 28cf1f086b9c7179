// Which source words each target word attends to, as lines between two columns.

import {choice, disclosure, html, number, scrollBox, shorten, svg, table, visibleToken} from "./dom.js";
import {saveButton} from "./save.js";
import {unpack} from "./unpack.js";

const [LINE, GAP] = [26, 220]; // pixels: the height of a line, and between the columns
const LETTER = 7.9; // pixels: the width of a letter
const [MIN_LETTERS, MAX_LETTERS] = [10, 24];

export function alignmentView(data) {
  const attention = data.attention.find((one) => one.name === data.alignment.attention);
  const source = data.sequences[attention.keys],
    target = data.alignment.written;
  const body = html("div", {});
  const choices = headChoices(attention);
  let chosen = Math.max(0, attention.layers.length - 2), // the last layer but one, as in `qkv run --align`
    words = target.words.at(-1) >= 3; // a target of one or two words is shown by tokens
  const show = async () => {
    const weights = await tokenWeights(attention, choices[chosen].heads, target.texts.length, source.texts.length);
    const rows = words ? grouped(weights, target.words, source.words) : weights;
    const left = labels(source, words),
      right = labels(target, words);
    body.replaceChildren(
      scrollBox("Alignment", alignmentPicture(left, right, rows)),
      disclosure("Alignment as a table", () =>
        scrollBox(
          "Alignment as a table",
          table(
            "The three strongest sources of each target",
            ["target", "first", "second", "third"],
            right.map((text, i) => [
              text,
              ...order(rows[i])
                .slice(0, 3)
                .map((j) => `${left[j]} ${number(rows[i][j], 2)}`),
            ]),
          ),
        ),
      ),
    );
  };
  const unit = choice(
    "Unit",
    ["words", "tokens"],
    (i) => {
      words = i === 0;
      show();
    },
    words ? 0 : 1,
  );
  show();
  return html(
    "div",
    {class: "block"},
    html(
      "div",
      {class: "controls"},
      choice(
        "Heads",
        choices.map(({name}) => name),
        (i) => {
          chosen = i;
          show();
        },
        chosen,
      ),
      unit,
      saveButton(() => body.querySelector("svg"), "alignment"),
    ),
    body,
  );
}

/** The heads whose mean can be shown, as [layer index, head index]: those of a layer, all of them, or one. */
function headChoices(attention) {
  const layers = attention.layers.map((_, y) => attention.heads.map((_, x) => [y, x]));
  return [
    ...layers.map((heads, y) => ({name: `mean of layer ${attention.layers[y]}`, heads})),
    {name: "mean of all heads", heads: layers.flat()},
    ...layers.flat().map(([y, x]) => ({
      name: `layer ${attention.layers[y]}, head ${attention.heads[x]}`,
      heads: [[y, x]],
    })),
  ];
}

async function tokenWeights(attention, heads, numQueries, numKeys) {
  const sums = Array.from({length: numQueries}, () => new Array(numKeys).fill(0));
  for (const [y, x] of heads) {
    const array = await unpack(attention.patterns[y]);
    for (let i = 0; i < numQueries; i++) {
      for (let j = 0; j < numKeys; j++) sums[i][j] += array.value((x * numQueries + i) * numKeys + j) / heads.length;
    }
  }
  return sums;
}

/** The weights between words: summed over the tokens of a source word, averaged over those of a target word. */
function grouped(weights, targetWords, sourceWords) {
  const rows = Array.from({length: targetWords.at(-1) + 1}, () => new Array(sourceWords.at(-1) + 1).fill(0));
  const counts = rows.map((_, i) => targetWords.filter((word) => word === i).length);
  weights.forEach((row, i) =>
    row.forEach((weight, j) => {
      rows[targetWords[i]][sourceWords[j]] += weight / counts[targetWords[i]];
    }),
  );
  return rows;
}

function labels(sequence, words) {
  if (!words) return sequence.texts.map(visibleToken);
  const joined = Array.from({length: sequence.words.at(-1) + 1}, () => "");
  sequence.texts.forEach((text, i) => {
    joined[sequence.words[i]] += text;
  });
  return joined.map((text) => visibleToken(text.trim() || text));
}

function order(row) {
  return row.map((_, j) => j).sort((a, b) => row[b] - row[a]);
}

/** Two columns of texts, and lines between them: `rows` has a weight for each target and source. */
export function alignmentPicture(left, right, rows) {
  const side = (names) => {
    const longest = Math.max(MIN_LETTERS, ...names.map((name) => Array.from(name).length));
    return 10 + LETTER * Math.min(MAX_LETTERS, longest);
  };
  const [height, start] = [Math.max(left.length, right.length) * LINE + 34, side(left)];
  const [end, middle] = [start + GAP, start + GAP / 2];
  const width = Math.max(end + side(right), end + 165); // at least the heading of the right column
  const offset = (count) => 30 + ((Math.max(left.length, right.length) - count) * LINE) / 2 + LINE / 2;
  const y = [(j) => offset(left.length) + j * LINE, (i) => offset(right.length) + i * LINE];
  const lines = [];
  rows.forEach((row, i) =>
    row.forEach((weight, j) => {
      if (weight < 0.04) return;
      lines.push(
        svg(
          "path",
          {
            class: "link-line",
            d: `M${start} ${y[0](j)} C${middle} ${y[0](j)} ${middle} ${y[1](i)} ${end} ${y[1](i)}`,
            "stroke-width": (0.75 + 4 * weight).toFixed(2),
            "stroke-opacity": (0.15 + 0.85 * weight).toFixed(2),
            "data-target": i,
          },
          svg("title", {}, `${right[i]} ← ${left[j]}: ${number(weight, 2)}`),
        ),
      );
    }),
  );
  const text = (words, x, at, anchor, extra = {}) =>
    svg(
      "text",
      {x, y: at, "text-anchor": anchor, "dominant-baseline": "central", class: "token", ...extra},
      svg("title", {}, words),
      shorten(words, MAX_LETTERS),
    );
  const graph = svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      class: "alignment",
      "aria-label": `Alignment of ${right.length} target units with ${left.length} source units`,
    },
    svg("text", {x: start - 8, y: 14, "text-anchor": "end", class: "step-number"}, "source"),
    svg("text", {x: end + 8, y: 14, class: "step-number"}, "target, as it is written"),
    lines,
    left.map((words, j) => text(words, start - 8, y[0](j), "end")),
    right.map((words, i) =>
      text(words, end + 8, y[1](i), "start", {onmouseenter: () => focus(i), onmouseleave: () => focus(-1)}),
    ),
  );
  function focus(i) {
    for (const line of graph.querySelectorAll(".link-line"))
      line.classList.toggle("dim", i >= 0 && line.dataset.target !== String(i));
  }
  return graph;
}
