"""The tasks, one file each: inputs, options, results, metrics, baselines and the code that runs the model."""
