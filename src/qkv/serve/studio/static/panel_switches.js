// Switches: every layer, head and MLP of the model as a button that takes it out of the computation.

import {html} from "./page/dom.js";
import {roving} from "./page/roving.js";

const KINDS = {head: "head", cross: "cross-attention head", mlp: "MLP"};

export function switchesPanel({info, off, switchAllOn, toggle}) {
  const isOff = new Set(off);
  return html(
    "div",
    {class: "block"},
    html(
      "p",
      {class: "note"},
      "A part that is switched off adds nothing to the residual stream. The answer above and all pictures are recomputed.",
    ),
    info.stacks.map((stack) => board(stack, isOff, toggle)),
    html(
      "div",
      {class: "buttons"},
      html("button", {type: "button", class: "quiet", disabled: !off.length, onclick: switchAllOn}, "Switch all on"),
    ),
  );
}

function board(stack, isOff, toggle) {
  const numbers = (count) => Array.from({length: count}, (_, i) => i);
  const rows = numbers(stack.layers).map((layer) => {
    const place = `${stack.name}.${layer}`;
    const isLayerOff = isOff.has(place);
    const part = (name, text, label) => switchButton(name, text, label, isOff.has(name), isLayerOff, toggle);
    return [
      switchButton(place, `layer ${layer}`, `${stack.name} layer ${layer}`, isLayerOff, false, toggle),
      ...numbers(stack.heads).map((h) => part(`${place}.head.${h}`, `h${h}`, `layer ${layer}, ${KINDS.head} ${h}`)),
      ...(stack.cross
        ? numbers(stack.heads).map((h) => part(`${place}.cross.${h}`, `c${h}`, `layer ${layer}, ${KINDS.cross} ${h}`))
        : []),
      part(`${place}.mlp`, "MLP", `layer ${layer}, ${KINDS.mlp}`),
    ];
  });
  roving(rows);
  const legend = stack.cross ? "h: heads of self-attention, c: heads of cross-attention" : "h: heads";
  return html(
    "div",
    {class: "board"},
    html("h3", {}, stack.name === "encoder" ? "Encoder" : "Decoder"),
    html("p", {class: "note"}, legend),
    html(
      "div",
      {class: "scroll", role: "group", "aria-label": `Switches of the ${stack.name}`},
      rows.map((row) => html("div", {class: "switch-row"}, row)),
    ),
  );
}

function switchButton(name, text, label, isOff, isCovered, toggle) {
  return html(
    "button",
    {
      type: "button",
      class: `switch${isOff || isCovered ? " off" : ""}`,
      "data-part": name,
      "aria-pressed": isOff ? "true" : "false",
      "aria-label": `Switch off ${label}`,
      title: `${label}${isOff ? ": off" : ""}`,
      onclick: () => toggle(name),
    },
    text,
  );
}
