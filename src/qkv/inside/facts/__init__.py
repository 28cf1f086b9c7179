"""Facts: generate a small world of them, train a decoder on it, find where a fact is stored, and change it.

world   people, facts and prompts          location  which MLP stores the facts, by patching
model   a decoder that learns the facts    edit      a rank-one change of one MLP, and its effects

    world = make_world()
    model = train_fact_model(world)
    location = locate_facts(model, world)
    edited = edit_fact(model, world, world.facts[0], "chess", location.layer)
    measure_edit(model, edited, world, world.facts[0], "chess")

There is a person for each pair of a first name and a last name. So no single token determines a fact: the model has to
combine both names, which needs an MLP. The model is built so that it cannot do this anywhere but at the name: the first
layers have a sliding window of one token, and the last layer, which reads the name from afar, has no MLP (its output
matrix is 0).
"""

from qkv.inside.facts.edit import EditReport, edit_fact, measure_edit, measure_edits
from qkv.inside.facts.location import FactLocation, locate_facts
from qkv.inside.facts.model import FactModel, train_fact_model
from qkv.inside.facts.world import Fact, FactPrompt, FactWorld, make_world

__all__ = [
    "EditReport",
    "Fact",
    "FactLocation",
    "FactModel",
    "FactPrompt",
    "FactWorld",
    "edit_fact",
    "locate_facts",
    "make_world",
    "measure_edit",
    "measure_edits",
    "train_fact_model",
]
