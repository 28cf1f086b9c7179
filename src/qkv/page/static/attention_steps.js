// Attention for one query, step by step: q·k, scale, bias, mask, softmax, mix.

/**
 * `q` (D numbers), `keys` and `values` (S lists of D), `scale`, `bias` (S numbers or null), `visible` (S booleans).
 * Returns one entry for each key, and the output z (D numbers). All numbers are computed in float64.
 */
export function attentionSteps({q, keys, values, scale, bias, visible}) {
  const dots = keys.map((key) => dot(q, key));
  const scaled = dots.map((value) => value * scale);
  const scores = scaled.map((value, j) => (visible[j] ? value + (bias ? bias[j] : 0) : -Infinity));
  const largest = Math.max(...scores);
  const exponentials = scores.map((score) => (largest === -Infinity ? 0 : Math.exp(score - largest)));
  const total = exponentials.reduce((sum, value) => sum + value, 0);
  const weights = exponentials.map((value) => (total ? value / total : 0));
  const z = q.map((_, d) => values.reduce((sum, value, j) => sum + (weights[j] ? weights[j] * value[d] : 0), 0));
  return {dots, scaled, scores, exponentials, total, weights, z};
}

function dot(a, b) {
  return a.reduce((sum, value, i) => sum + value * b[i], 0);
}

/** The length of a vector. */
export function norm(vector) {
  return Math.sqrt(dot(vector, vector));
}
