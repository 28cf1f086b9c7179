// What a panel draws: the trace of the text by one model, with the switches of its side.

import {get, post} from "./server.js";

const infos = new Map(); // what the server says of each model

/** What the server says of a model. */
export async function loadInfo(model, signal) {
  if (!infos.has(model)) infos.set(model, await get(`models/${encodeURIComponent(model)}`, signal));
  return infos.get(model);
}

/** Ask the server again: it may have been started with other models. */
export function forgetInfos() {
  infos.clear();
}

/**
 * The context of a side, 0 or 1: the model (`info`), its trace (`data`), the switches (`off`), what to send for more
 * (`request`), and what a panel can do: `update` a choice, `switchAllOn`, `toggle` a part, `fail` with an error.
 */
export async function makeContext(side, panel, shared) {
  const {state, update, signal} = shared;
  if (panel.views === null) return {side, ...shared}; // it needs no model
  const [model, offName] = side === 0 ? [state.model, "off"] : [state.other, "otherOff"];
  const info = await loadInfo(model, signal);
  const off = state[offName].filter((name) => hasPart(info, name));
  const request = {model, text: state.text, off};
  if (info.family === "seq2seq" && state.target) request.target = state.target;
  if (readsPairs(info) && state.target) request.text = `${state.text}\t${state.target}`; // a tab separates a pair
  const wanted = {...request, views: panel.views};
  if (panel.name === "next" && side === 0 && state.position !== null) wanted.position = state.position;
  const data = await post("trace", wanted, signal);
  const switchAllOn = () => update({[offName]: []});
  // The switches as they are now: this trace may be older than the last click.
  const toggle = (name) =>
    update({[offName]: (now) => (now.includes(name) ? now.filter((one) => one !== name) : [...now, name])});
  return {side, ...shared, info, data, request, off, switchAllOn, toggle};
}

/** Whether a model can read two texts: to classify both, or a question and its context. */
export function readsPairs(info) {
  return info.family === "encoder" && ["classify", "span"].includes(info.head);
}

function hasPart(info, name) {
  const [stack, layer, kind, head] = name.split(".");
  const found = info.stacks.find((one) => one.name === stack);
  if (!found || Number(layer) >= found.layers || (kind === "cross" && !found.cross)) return false;
  return head === undefined || Number(head) < found.heads;
}
