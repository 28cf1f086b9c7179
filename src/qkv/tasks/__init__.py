"""What the commands and `Model` do: train a recipe, run a model on texts, evaluate it, report on a run.

train, watchers, calibrate              train a recipe; its log; a classifier's temperature and threshold
describe, verify_resume, doctor         what a recipe would do, whether a run resumes exactly, what is wrong with it
starters/, prepare/                     new recipes; the data, tokenizer and model of a recipe
task, evaluate                          the definition of a task; the table of all tasks; run and evaluate a model
run/, chat/                             one file for each task; chats
calls, results                          `m.translate`, `m.classify` and the other calls; what they return
evaluation_records, use_in_training     the records of an evaluation; whether a run has seen them in training
metrics/, baseline                      metrics as plain functions; a linear classifier to compare with
judges/, report/                        `qkv report`
model_list                              `qkv models`
"""
