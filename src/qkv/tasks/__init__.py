"""Train a recipe, run a model on texts, evaluate a model on records.

train, verify_resume, describe, starters   train a recipe, check resuming, dry run, new recipes
prepare/                                   data, tokenizer and model of a recipe
task, evaluate                             the definition of a task; find a model's task, run it, evaluate it
run/                                       one file for each task
evaluation_records                         records for an evaluation
metrics/                                   metrics as plain functions
"""
