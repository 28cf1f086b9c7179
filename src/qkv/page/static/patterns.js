// The patterns and masks of one attention of a document.

import {unpack} from "./unpack.js";

/** The bytes of one head, (queries × keys), from the array of its layer. */
export async function headBytes(attention, layerIndex, headIndex) {
  const array = await unpack(attention.patterns[layerIndex]);
  const [, queries, keys] = array.shape;
  return array.data.subarray(headIndex * queries * keys, (headIndex + 1) * queries * keys);
}

/** The reasons why cells of a layer are masked: 0 for a visible cell. */
export function maskReasons(attention, layerIndex) {
  return unpack(attention.masks[attention.mask_of_layer[layerIndex]].reasons);
}
