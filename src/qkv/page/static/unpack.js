// Unpack arrays: numbers in C order, little-endian, raw deflate, base64. `page/packing.py` packs them.

const TYPES = {u8: Uint8Array, i32: Int32Array, f32: Float32Array};
const unpacked = new WeakMap();

/** The array as {shape, data, value(index)}: `data` are the stored numbers, `value` the number that one stands for. */
export function unpack(packed) {
  if (!unpacked.has(packed)) unpacked.set(packed, decode(packed));
  return unpacked.get(packed);
}

async function decode(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const data = new TYPES[packed.dtype](await new Response(stream).arrayBuffer());
  return {shape: packed.shape, data, value: valueOf(packed, data)};
}

function valueOf(packed, data) {
  const size = packed.size;
  if (packed.scale === "sqrt") return (i) => size * (data[i] / 255) ** 2;
  if (packed.scale === "signed") {
    return (i) => {
      const step = data[i] - 128;
      return (size * step * Math.abs(step)) / 127 ** 2;
    };
  }
  return (i) => data[i];
}
