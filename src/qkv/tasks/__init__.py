"""What a person asks a model for: a task has data, a metric and a result.

    task         what a task is, and what an evaluation tells
    evaluate     the list of tasks, which of them a model is made for, and the two things that are done with one
    metrics/     how well texts, labels, spans and numbers agree with what was expected
    layout       objectives' examples as batches of a network's rows

One file for each task: text_to_text, language, fill, classify, tag, answer, embed.
"""
