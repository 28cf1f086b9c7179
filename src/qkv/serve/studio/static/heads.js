// What the studio can do with a head of the attention panel: load its exact numbers, switch it off, remember it.

import {html} from "./page/dom.js";
import {openHead} from "./page/view_head.js";
import {pictureButtons} from "./export.js";
import {post} from "./server.js";

/** The actions of view_attention.js. */
export function headActions({data, request, off, toggle, update, state, side, fail, signal}) {
  const partName = (attention, layer, head) =>
    `${attention.queries}.${layer}.${attention.name === "cross" ? "cross" : "head"}.${head}`;
  const isOff = (attention, layer, head) =>
    off.includes(partName(attention, layer, head)) || off.includes(`${attention.queries}.${layer}`);
  const actions = {
    isOff,
    load: (attention, layer, head) => loadDetail({attention, layer, head, request, signal}).catch(fail),
    opened: (place) => {
      const name = place ? `${place[0].name}.${place[1]}.${place[2]}` : "";
      if (side === 0) update({head: name}, {quiet: true});
    },
    buttons: (attention, layer, head, close) => {
      const name = partName(attention, layer, head);
      const press = () => {
        close();
        toggle(name);
      };
      const text = off.includes(name) ? "Switch this head on" : "Switch this head off";
      const savers = pictureButtons(
        () => document.querySelector("dialog .head-body"),
        () => name,
      );
      return [html("button", {type: "button", class: "quiet", onclick: press}, text), savers[1]]; // the dialog saves SVG
    },
  };
  if (state.head && side === 0 && !document.querySelector("dialog")) reopen(data, state.head, actions);
  return actions;
}

/** The exact q, k and v of a head are fetched when it is opened. */
async function loadDetail({attention, layer, head, request, signal}) {
  if (attention.details.some((one) => one.layer === layer && one.head === head)) return;
  const found = await post("trace", {...request, views: ["attention"], layer, head}, signal);
  const same = found.attention.find((one) => one.name === attention.name);
  attention.details.push(...same.details);
}

/** Open the head that a link names, if this model has it. */
function reopen(data, name, actions) {
  const [kind, layer, head] = name.split(".");
  const attention = data.attention.find((one) => one.name === kind);
  const [y, x] = [attention?.layers.indexOf(Number(layer)), attention?.heads.indexOf(Number(head))];
  if (y >= 0 && x >= 0) openHead(data, attention, y, x, actions);
}
