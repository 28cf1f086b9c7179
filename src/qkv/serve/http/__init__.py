"""What all routes share: typed JSON, errors, API keys, logs, metrics and the OpenAPI document."""
