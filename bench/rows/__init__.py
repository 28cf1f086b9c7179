"""The rows of docs/results.md: a module trains a model on a public dataset, and scores it like the published one.

A module has a docstring (the data, the published figure with its source, the goal) and two functions:

    run(data, out, seed, quick) -> dict      train and predict; write out/predictions.jsonl
    score(predictions) -> dict               the scores of the lines of predictions.jsonl, with intervals

`VARIANTS`, if a module has it, names several rows of one module; `run` then has the argument `variant`.
"""
