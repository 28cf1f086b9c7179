"""The lab: claims of lecture notes on the Transformer, each with an experiment that tests it.

command      `qkv lab`: the command, which qkv finds by the entry point `lab`
claim        a claim: its quotation, its experiment, what the experiment is expected to show, its picture
experiment   what an experiment runs with: its settings, a seed, and training on the engine that users train with
table        the measurements of all seeds: means, confidence intervals, fitted exponents
run          run a claim; results are kept in a JSON file, seed by seed
chart        the picture of a claim
docs_pages   the pages of docs/lab, written from results
loop         a plain training loop, for networks that no recipe describes
claims/      one file for each claim, in a folder for each chapter

The lab is a package of its own and imports from qkv what any user can import. qkv never imports it.
"""
