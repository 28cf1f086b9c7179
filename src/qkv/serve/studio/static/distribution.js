// From logits to the distribution that a sampler draws from: temperature, top-k, top-p, in this order.

/**
 * `logits` are sorted, largest first. Returns {plain, kept, probabilities}: the softmax of the logits as they are; how
 * many tokens remain after top-k and top-p; and the probabilities of these. Temperature 0 keeps the first token.
 */
export function distribution(logits, {temperature = 1, topK = 0, topP = 1}) {
  const plain = softmax(logits, 1);
  if (temperature === 0) return {plain, kept: 1, probabilities: [1]};
  let kept = logits.length;
  if (topK > 0 && topK < kept) {
    kept = topK;
    while (kept < logits.length && logits[kept] === logits[topK - 1]) kept++; // ties with the last one stay
  }
  let probabilities = softmax(logits.slice(0, kept), temperature);
  if (topP < 1) {
    let total = 0;
    kept = probabilities.findIndex((probability) => {
      const enough = total >= topP;
      total += probability;
      return enough;
    });
    if (kept < 0) kept = probabilities.length;
    probabilities = softmax(logits.slice(0, kept), temperature);
  }
  return {plain, kept, probabilities};
}

function softmax(sorted, temperature) {
  const exponentials = Array.from(sorted, (logit) => Math.exp((logit - sorted[0]) / temperature));
  const total = exponentials.reduce((sum, value) => sum + value, 0);
  return exponentials.map((value) => value / total);
}

/** The entropy of probabilities in bits. */
export function entropy(probabilities) {
  return probabilities.reduce((sum, p) => (p > 0 ? sum - p * Math.log2(p) : sum), 0);
}
