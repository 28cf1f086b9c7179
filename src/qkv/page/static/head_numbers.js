// The numbers of one head: its weights and its mask and, if the document has q, k and v, every step between them.

import {attentionSteps} from "./attention_steps.js";
import {headBytes, maskReasons} from "./patterns.js";
import {unpack} from "./unpack.js";

/**
 * `weight(i, j)` and `reason(i, j)` are those of query i and key j; the reason is 0 if the pair is not masked.
 * `steps(i)` are the exact steps of query i (see attention_steps.js) with its q, and the keys, values and bias that it
 * meets. It is null if the document does not have them; then the weights are rounded.
 */
export async function loadHead(data, attention, layerIndex, headIndex) {
  const layer = attention.layers[layerIndex];
  const head = attention.heads[headIndex];
  const queries = data.sequences[attention.queries].texts;
  const keys = data.sequences[attention.keys].texts;
  const bytes = await headBytes(attention, layerIndex, headIndex);
  const reasons = (await maskReasons(attention, layerIndex)).data;
  const reason = (i, j) => reasons[i * keys.length + j];
  const detail = attention.details.find((one) => one.layer === layer && one.head === head);
  const steps = detail ? await exactSteps(detail, reason) : null;
  const weight = steps ? (i, j) => steps(i).weights[j] : (i, j) => (bytes[i * keys.length + j] / 255) ** 2;
  const summary = attention.summaries[layerIndex][headIndex];
  return {layer, head, queries, keys, bytes, reason, weight, steps, summary, scale: detail?.scale};
}

async function exactSteps(detail, reason) {
  const [queries, keys, values] = await Promise.all([detail.q, detail.k, detail.v].map(unpackRows));
  const biases = detail.bias ? await unpackRows(detail.bias) : null;
  const computed = new Map();
  return (i) => {
    if (!computed.has(i)) {
      const inputs = {q: queries[i], keys, values, scale: detail.scale, bias: biases ? biases[i] : null};
      const visible = keys.map((_, j) => reason(i, j) === 0);
      computed.set(i, {...inputs, ...attentionSteps({...inputs, visible})});
    }
    return computed.get(i);
  };
}

async function unpackRows(packed) {
  const {shape, data} = await unpack(packed);
  return Array.from({length: shape[0]}, (_, i) => Array.from(data.subarray(i * shape[1], (i + 1) * shape[1])));
}
