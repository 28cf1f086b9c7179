"""What users ask for: train a recipe, run a model on texts, evaluate it on records.

train, verify_resume, describe, starters   recipes: train, check resuming, dry run, and new recipes
prepare/                                   from a recipe to data, tokenizer and model
task, evaluate                             what a task is; find the task of a model, run it, evaluate it
run/                                       one file for each task
evaluation_records                         records for an evaluation
metrics/                                   metrics as plain functions
"""
