"""Where does a model store a fact, and can it be changed? Train a decoder on generated facts, locate them, edit them.

python examples/edit_facts.py --seeds 0 1 2 --edits 20
"""

import argparse

from qkv.inside.facts import locate_facts, make_world, measure_edits, train_fact_model

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--seeds", type=int, nargs="+", default=[0])
parser.add_argument("--edits", type=int, default=20)
arguments = parser.parse_args()
for seed in arguments.seeds:
    world = make_world(seed=seed)
    model = train_fact_model(world, seed=seed)
    location = locate_facts(model, world)
    other_layers = [layer for layer in range(len(location.effects)) if layer != location.layer]
    print(f"seed {seed}: {len(world.facts)} facts, {model.accuracy(world.prompts()):.1%} of the prompts answered")
    print("  effect of each MLP:", ", ".join(f"{effect:.2f}" for effect in location.effects), flush=True)
    for name, layers in ((f"layer {location.layer}", [location.layer]), ("a random other layer", other_layers)):
        report = measure_edits(model, world, layers, num_edits=arguments.edits, seed=seed)
        print(f"  {arguments.edits} edits in {name}: {report.success:.1%} of the paraphrases have the new answer;")
        print(f"    changed answers: {report.others_changed:.2%} about other facts", end=", ")
        print(f"{report.same_person_changed:.1%} about other facts of the same person", flush=True)
