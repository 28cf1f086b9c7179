"""An HTTP server for models: `qkv serve`.

settings    limits and addresses, in one place
app         `make_app`: the ASGI application
server      runs the application with uvicorn, until a signal stops it
http/       what all routes share: typed JSON, errors, keys, logs, metrics, the OpenAPI document
running/    models in memory: the pool, the engine thread of each model, batches of other calls
routes/     the routes: OpenAI's API, tasks, operations
studio/     the studio, a web page that shows a model at work
"""
