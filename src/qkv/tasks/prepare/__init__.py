"""From a recipe to everything that training needs: data, tokenizer, config, network."""
