"""What the commands and `Model` do: train a recipe, run a model on texts, evaluate it, report on a run.

train, watchers, calibrate              train a recipe; its log; a classifier's temperature and threshold
describe, verify_resume, doctor         what a recipe would do, whether a run resumes exactly, what is wrong with it
starters/, prepare/                     new recipes; the data, tokenizer and model of a recipe
task, record_task, table, verbs/        the definition of a task; the table of all tasks; the tasks, one file each
results, scorer, baselines              results that print themselves; predictions beside what is expected
calls, run/, chat/                      `m.translate` and the other calls; what they need; chats
evaluation, evaluate, metrics/          the options and the result of an evaluation; one way for all tasks; the metrics
evaluation_records                      the records of an evaluation; whether a run has seen them in training
report/                                 `qkv report`
model_list                              `qkv models`
"""
