"""One page of HTML about runs and benches, readable without a network: plots, tables, script, environment, record."""
