// Where each word looks on the pictures: the patches of a picture, darker where the word does not look.

import {choice, html, number, svg} from "./dom.js";
import {unpack} from "./unpack.js";

const SIZE = 256; // pixels of a picture on the page

export function pictureView(data) {
  const {rows, columns, maps, queries, pictures, effects} = data.picture;
  const numPatches = rows * columns;
  let query = 0;
  let map = maps.length - 1;
  const shades = pictures.map(() =>
    Array.from({length: numPatches}, (_, i) =>
      svg("rect", {
        x: ((i % columns) * SIZE) / columns,
        y: (Math.floor(i / columns) * SIZE) / rows,
        width: SIZE / columns,
        height: SIZE / rows,
        fill: "#000",
      }),
    ),
  );
  const frames = pictures.map((picture, i) =>
    svg(
      "svg",
      {viewBox: `0 0 ${SIZE} ${SIZE}`, width: SIZE, height: SIZE, role: "img", "aria-label": `Picture ${i + 1}`},
      svg("image", {href: picture.png, width: SIZE, height: SIZE, preserveAspectRatio: "none"}),
      shades[i],
    ),
  );
  const readout = html("p", {class: "readout", role: "status"});
  Promise.all(pictures.map((picture) => unpack(picture.weights))).then((weights) => {
    const draw = () => {
      for (const [i, {value}] of weights.entries()) {
        const start = (map * queries.length + query) * numPatches;
        shades[i].forEach((shade, j) => shade.setAttribute("fill-opacity", 0.85 * (1 - value(start + j))));
      }
      const shares = pictures.map((picture) => `${number(100 * picture.share[map][query], 0)} %`).join(" and ");
      readout.textContent =
        `“${queries[query]}” gives ${shares} of its attention to the patches. Without the ${effects.num_patches} ` +
        `patches that it looks at most, its log-probability falls by ${number(effects.looked[query])}; without as ` +
        `many random patches, by ${number(effects.random[query])}.`;
    };
    controls.append(
      choice("Word", queries, (i) => {
        query = i;
        draw();
      }),
      choice(
        "Attention",
        maps,
        (i) => {
          map = i;
          draw();
        },
        map,
      ),
    );
    draw();
  });
  const controls = html("div", {class: "controls"});
  return html("div", {class: "block"}, controls, readout, html("div", {class: "pictures"}, frames));
}
