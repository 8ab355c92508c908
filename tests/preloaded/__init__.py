"""A Python interpreter that starts without the seconds of `import torch`; see `tests.preloaded.interpreter`."""
