"""The studio: a web page that shows a model at work, and the functions that compute what it shows.

    requests    the JSON that the page sends, checked         document   the trace of a text, as the page draws it
    switches    heads, MLPs and layers that are switched off  answer     what the model answers with and without them
    next_token  the distribution over the next token          search     a beam search, step by step
    words       the answer for a text without each word       neurons    neurons and sparse features, top examples
    runs        training runs on this machine                 options    what the studio is started with
    routes      the HTTP routes

Each function takes a model and a request, and returns JSON values. `static/` is the page: plain JavaScript modules, one
for each panel, that draw with the modules of `qkv.page`.
"""
