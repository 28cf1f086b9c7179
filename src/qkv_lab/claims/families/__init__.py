"""Claims about families of models and the recurrent baseline."""
