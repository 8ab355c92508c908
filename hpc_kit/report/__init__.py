"""A self-contained HTML page about runs and benchmarks: plots, tables, script, environment and record."""
