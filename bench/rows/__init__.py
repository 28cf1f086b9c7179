"""The rows of docs/results.md: each module trains a model on one public data set and scores it as others have.

A module has a docstring (the data, the published figure with its source, the goal) and two functions:

    run(data, out, seed, quick) -> dict      train and predict; write out/predictions.jsonl
    score(predictions) -> dict               the scores of the lines of predictions.jsonl, with intervals

`VARIANTS`, if a module has it, names several rows of one module; `run` then has the argument `variant`.
"""
