// The numbers beside the axes of charts.

/** Round numbers inside a range, about five. */
export function roundTicks(low, high) {
  const raw = (high - low) / 4 || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = size * [1, 2, 5, 10].find((digit) => size * digit >= raw * 0.8);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({length: Math.max(0, count)}, (_, i) => (first + i) * step);
}
