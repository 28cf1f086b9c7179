"""From a recipe to everything that training needs.

prepare            runs all steps of the preparation
sources, columns   files and built-in datasets as records with the objective's fields
tokenizer, model   load a tokenizer and a model, or make them for the data
evaluation_check   checks that the recipe's metric can be computed
memory             estimates the memory that training takes
"""
