"""Atom mapping of chemical reactions by the attention of an ALBERT that was trained on reactions as text (RXNMapper).

Data: weights/rxnmapper_albert: the published model, and the reactions of its tests with the maps that its authors'
program finds (`expected_maps.json`). Nothing is trained.
Published: Schwaller et al. 2021: 99.4 % of the reactions of a test set are mapped correctly. That set is not at hand.
Goal: the atoms of the expected maps. An atom counts as right only if it is the expected one, also if a symmetric atom
would be as good.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch

import qkv
from rows import frame

LAYER, HEAD = 10, 5  # from 0
MULTIPLIER = 90.0  # of the weights of atoms beside atoms that are mapped
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops]|%\d\d|\d|>>|->|<-|[()=#$:/\\.~*+-]")
BRACKET = re.compile(r"\[(\d*)([A-Za-z][a-z]?|\*)(@*)(H?\d*)([+-]*\d*)(?::(\d+))?\]")
ATOM = re.compile(r"\[.+\]|Br|Cl|[BCNOPSFIbcnops]|\*")


PLAIN = {*"BCNOPSFI", "Cl", "Br", *"cnos*"}
"""Atoms that are written without brackets, if nothing but their hydrogens is said of them."""


def strip_maps(mapped: str) -> tuple[list[str], list[int]]:
    """The tokens of a reaction without the numbers of its map, and the number of each atom (0: none)."""
    tokens, numbers = [], []
    for token in TOKEN.findall(mapped.partition(" ")[0]):
        found = BRACKET.fullmatch(token)
        if found:
            isotope, element, chiral, hydrogens, charge, number = found.groups()
            plain = not (isotope or chiral or charge) and element in PLAIN
            plain = plain and not (hydrogens and element == "n")
            if number:
                token = element if plain else f"[{isotope}{element}{chiral}{hydrogens}{charge}]"
            numbers.append(int(number or 0))
        elif ATOM.fullmatch(token):
            numbers.append(0)
        tokens.append(token)
    return tokens, numbers


def parse(tokens: list[str]) -> tuple[list[int], list[set[int]], int]:
    """The positions of atoms among the tokens, the neighbours of each atom, and the number of atoms of reactants."""
    positions: list[int] = []
    neighbours: list[set[int]] = []
    rings: dict[str, int] = {}
    branches: list[int] = []
    last, split = -1, 0
    for position, token in enumerate(tokens):
        if ATOM.fullmatch(token):
            positions.append(position)
            neighbours.append(set())
            if last >= 0:
                neighbours[last].add(len(positions) - 1)
                neighbours[-1].add(last)
            last = len(positions) - 1
        elif token == "(":
            branches.append(last)
        elif token == ")":
            last = branches.pop()
        elif token == ">>":
            last, split = -1, len(positions)
        elif token == ".":
            last = -1
        elif token.isdigit() or token.startswith("%"):
            other = rings.pop(token, None)
            if other is None:
                rings[token] = last
            else:
                neighbours[other].add(last)
                neighbours[last].add(other)
    return positions, neighbours, split


def element(token: str) -> str:
    """The element of an atom."""
    found = BRACKET.fullmatch(token)
    return (found[2] if found else token).capitalize()


def map_atoms(model: qkv.Model, vocabulary: dict[str, int], tokens: list[str]) -> dict[int, int]:
    """The reactant atom of each product atom, by the attention of one head between atoms of the same element.

    The surest atom is mapped first. Its neighbours then have larger weights.
    """
    unk = vocabulary["[UNK]"]
    ids = [vocabulary["[CLS]"], *(vocabulary.get(token, unk) for token in tokens), vocabulary["[SEP]"]]
    site = f"encoder.{LAYER}.pattern"
    weights = model.trace(ids, sites=[site])[site][HEAD].double()
    positions, neighbours, split = parse(tokens)
    at = [position + 1 for position in positions]
    kinds = [element(tokens[position]) for position in positions]
    products = range(split, len(positions))
    score = torch.zeros(len(positions), len(positions), dtype=torch.float64)
    for i in products:
        for j in range(split):
            if kinds[i] == kinds[j]:
                score[i, j] = weights[at[i], at[j]] + weights[at[j], at[i]]
    found: dict[int, int] = {}
    remaining = set(products)
    while remaining:
        shares = {i: score[i] / score[i].sum().clamp(min=1e-12) for i in remaining}
        i = max(remaining, key=lambda i: float(shares[i].max()))
        remaining.remove(i)
        if float(score[i].max()) <= 0:
            continue
        j = int(score[i].argmax())
        found[i] = j
        score[:, j] = 0
        for a in neighbours[i]:
            for b in neighbours[j]:
                score[a, b] *= MULTIPLIER
    return found


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Map the atoms of each reaction, and compare the maps with those of the published program."""
    folder = data / "weights" / "rxnmapper_albert"
    model = qkv.load(folder)
    vocabulary = {token: i for i, token in enumerate(frame.read_lines(folder / "vocab.txt")) if token}
    cases = json.loads(frame.read_text(folder / "expected_maps.json"))
    lines = []
    for mapped in [one["mapped_rxn"] for case in cases for one in case["expected"]]:
        tokens, numbers = strip_maps(mapped)
        split = parse(tokens)[2]
        atom_of = {number: atom for atom, number in enumerate(numbers[:split]) if number}
        expected = {atom: atom_of[n] for atom, n in enumerate(numbers[split:], split) if n in atom_of}
        found = map_atoms(model, vocabulary, tokens)
        right = sum(found.get(atom) == other for atom, other in expected.items())
        lines.append({"reaction": mapped, "atoms": len(expected), "right": right})
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return {"parameters": sum(one.numel() for one in model.network.parameters()), "seconds": 0.0, "steps": 0}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The percentage of atoms, and of whole reactions, that are mapped as by the published program."""
    right, atoms = [one["right"] for one in predictions], [one["atoms"] for one in predictions]
    whole = [float(one["right"] == one["atoms"]) for one in predictions]
    return {"atoms": frame.interval(right, atoms, 100), "reactions": frame.interval(whole, scale=100)}
