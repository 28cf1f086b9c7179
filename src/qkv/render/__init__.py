"""Results as a person reads them in a terminal: one module for each verb that shows more than a line."""
