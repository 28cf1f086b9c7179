// Heat maps: a matrix of bytes as pixels, plain (a thumbnail) or with tokens along its sides.

import {css, inkOn, weightColours} from "./colour.js";
import {shorten, svg, visibleToken} from "./dom.js";

/**
 * Draw rows × columns bytes, one pixel each. `colours` has 256 entries. Where `hidden(i)` is true, nothing is drawn.
 */
export function drawPixels(canvas, bytes, rows, columns, colours, hidden = () => false) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    if (hidden(i)) continue;
    const colour = colours[bytes[i]];
    image.data[4 * i] = colour[0];
    image.data[4 * i + 1] = colour[1];
    image.data[4 * i + 2] = colour[2];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** The bytes of a smaller matrix, of at most `limit` rows and columns: each is the largest of a square of cells. */
export function shrink(bytes, rows, columns, limit) {
  const factor = Math.ceil(Math.max(rows, columns) / limit);
  if (factor === 1) return {bytes, rows, columns};
  const smaller = {rows: Math.ceil(rows / factor), columns: Math.ceil(columns / factor)};
  const largest = new Uint8Array(smaller.rows * smaller.columns);
  for (let i = 0; i < rows * columns; i++) {
    const at = Math.floor(Math.floor(i / columns) / factor) * smaller.columns + Math.floor((i % columns) / factor);
    if (bytes[i] > largest[at]) largest[at] = bytes[i];
  }
  return {bytes: largest, ...smaller};
}

/** The side of a cell in pixels, for `count` cells in about `room` pixels. */
export function cellSize(count, room, smallest = 9, largest = 30) {
  return Math.max(smallest, Math.min(largest, Math.floor(room / Math.max(count, 1))));
}

/**
 * A matrix with its query tokens on the left and its key tokens on top.
 * `text(row, column)` is written into a cell that has room; `pick(row, column)` is called for a click on a cell.
 */
export function labelledHeatmap({
  label,
  bytes,
  queries,
  keys,
  hidden,
  colours = weightColours(),
  text,
  pick,
  selected = -1,
  room = 500,
}) {
  const size = cellSize(Math.max(queries.length, keys.length), room);
  const font = Math.min(13, Math.max(8, size - 2));
  const left = 10 + labelRoom(queries, font),
    top = 10 + labelRoom(keys, font);
  const width = left + keys.length * size + 4,
    height = top + queries.length * size + 4;
  const parts = [
    matrix(bytes, queries.length, keys.length, colours, hidden, size, left, top),
    queries.map((token, i) =>
      svg(
        "text",
        {
          x: left - 6,
          y: top + (i + 0.5) * size,
          "font-size": font,
          "text-anchor": "end",
          "dominant-baseline": "central",
          class: i === selected ? "token chosen" : "token",
        },
        tokenLabel(token),
      ),
    ),
    keys.map((token, j) =>
      svg(
        "text",
        {
          transform: `translate(${left + (j + 0.5) * size} ${top - 6}) rotate(-90)`,
          "font-size": font,
          "dominant-baseline": "central",
          class: "token",
        },
        tokenLabel(token),
      ),
    ),
  ];
  if (text && size >= 22)
    parts.push(cellTexts(text, bytes, colours, queries.length, keys.length, size, left, top, hidden));
  if (selected >= 0) {
    parts.push(
      svg("rect", {x: left, y: top + selected * size, width: keys.length * size, height: size, class: "row-frame"}),
    );
  }
  const picture = svg(
    "svg",
    {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, class: "heatmap"},
    parts,
  );
  if (pick) {
    picture.classList.add("clickable");
    picture.addEventListener("click", (event) => {
      const box = picture.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * width,
        y = ((event.clientY - box.top) / box.height) * height;
      const row = Math.floor((y - top) / size),
        column = Math.floor((x - left) / size);
      if (row >= 0 && row < queries.length) pick(row, Math.min(Math.max(column, -1), keys.length - 1));
    });
  }
  return picture;
}

/** The cells as rectangles or, if there are very many, as one image. */
function matrix(bytes, rows, columns, colours, hidden, size, left, top) {
  if (rows * columns > 2500) {
    const canvas = document.createElement("canvas");
    drawPixels(canvas, bytes, rows, columns, colours, hidden);
    return svg("image", {
      href: canvas.toDataURL(),
      x: left,
      y: top,
      width: columns * size,
      height: rows * size,
      preserveAspectRatio: "none",
      style: {imageRendering: "pixelated"},
    });
  }
  const cells = [];
  bytes.forEach((byte, i) => {
    if (hidden?.(i)) return;
    cells.push(
      svg("rect", {
        x: left + (i % columns) * size,
        y: top + Math.floor(i / columns) * size,
        width: size - 0.5,
        height: size - 0.5,
        fill: css(colours[byte]),
      }),
    );
  });
  return cells;
}

function cellTexts(text, bytes, colours, rows, columns, size, left, top, hidden) {
  const texts = [];
  for (let i = 0; i < rows * columns; i++) {
    const words = text(Math.floor(i / columns), i % columns);
    if (!words || hidden?.(i)) continue;
    texts.push(
      svg(
        "text",
        {
          x: left + ((i % columns) + 0.5) * size,
          y: top + (Math.floor(i / columns) + 0.5) * size,
          "text-anchor": "middle",
          "dominant-baseline": "central",
          "font-size": Math.min(words.length > 1 ? 10 : 13, size / (words.length > 1 ? 2.6 : 1.8)),
          style: {fill: inkOn(colours[bytes[i]])},
        },
        words,
      ),
    );
  }
  return texts;
}

function tokenLabel(text) {
  return shorten(visibleToken(text), 12);
}

function labelRoom(tokens, font) {
  return 0.62 * font * Math.min(12, Math.max(1, ...tokens.map((text) => Array.from(visibleToken(text)).length)));
}

/** A row of numbers as coloured cells; `bytes` are around 128 as in `signedColours`. */
export function strip(label, bytes, colours, height = 16) {
  const width = cellSize(bytes.length, 520, 2, 14);
  return svg(
    "svg",
    {
      viewBox: `0 0 ${bytes.length * width} ${height}`,
      width: bytes.length * width,
      height,
      role: "img",
      "aria-label": label,
      class: "strip",
    },
    Array.from(bytes, (byte, i) =>
      svg("rect", {x: i * width, y: 0, width: width - (width > 5 ? 1 : 0), height, fill: css(colours[byte])}),
    ),
  );
}

/** Numbers as bytes around 128, so that the largest magnitude is at an end of the scale. */
export function signedBytes(values, size = Math.max(...values.map(Math.abs)) || 1) {
  return Uint8Array.from(values, (value) => Math.round(128 + 127 * Math.max(-1, Math.min(1, value / size))));
}
