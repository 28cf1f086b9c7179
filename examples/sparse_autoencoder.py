"""Train a sparse autoencoder on a site of a language model, measure it on held-out text, and write a page of features.

python examples/sparse_autoencoder.py runs/shakespeare input.txt --site decoder.1.resid_post --kind topk --k 16

The last tenth of the text is held out.
"""

import argparse
import json
from pathlib import Path

import qkv
from qkv import inside

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("text", type=Path)
parser.add_argument("--site", required=True)
parser.add_argument("--kind", choices=["topk", "relu"], default="topk")
parser.add_argument("--features", type=int, default=1024)
parser.add_argument("--k", type=int, default=32, help="topk: the number of active features of a token")
parser.add_argument("--l1", type=float, default=0.01, help="relu: the weight of the L1 penalty")
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--out", default="features.html")
arguments = parser.parse_args()

model = qkv.load(arguments.model)
examples = inside.encode_examples(model.network, model.tokenizer, [arguments.text.read_text(encoding="utf-8")])
num_train = len(examples) * 9 // 10
autoencoder = inside.fit_autoencoder(
    model.network,
    examples[:num_train],
    arguments.site,
    kind=arguments.kind,
    features=arguments.features,
    k=arguments.k,
    options=inside.AutoencoderOptions(steps=arguments.steps, l1=arguments.l1),
    batch_size=64,
    on_step=lambda step: print(f"step {step.step}: explained variance {step.explained_variance:.3f}, L0 {step.l0:.1f}"),
)
autoencoder.save(Path(arguments.out).with_suffix(".safetensors"))
held_out = examples[num_train:]
report = inside.evaluate_autoencoder(model.network, autoencoder, held_out, batch_size=64)
print(json.dumps(report.to_dict(), indent=2))
page = inside.summarise_features(
    model.network, autoencoder, held_out, tokenizer=model.tokenizer, context=24, batch_size=64, report=report
)
page.save(arguments.out, title=f"Features of {arguments.model}")
