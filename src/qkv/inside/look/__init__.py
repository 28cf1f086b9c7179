"""What the page of `qkv look` shows, gathered from a model and a trace into one JSON document.

    document    puts the parts together            attention    patterns, masks, exact numbers of some heads
    masks       why a key is masked                embeddings   token and position vectors
    lens        predictions after each layer       neurons      the most active neurons
    search      a beam search as a tree            sequences    heading, tokens, and which tokens form a word
    page        the document as an HTML page       trace_page   the page of a trace alone, for notebooks

`qkv.page` draws the document.
"""
