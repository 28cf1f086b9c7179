"""From a recipe to everything that training needs.

prepare            the whole, step by step
sources, columns   files and built-in datasets as records with the objective's fields
tokenizer, model   loaded, or made for the data
evaluation_check   whether the recipe's metric can be computed
memory             an estimate of the memory that training takes
"""
