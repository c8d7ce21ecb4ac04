"""polarless: a disaggregated database. This package holds the bottom shelf that every tier stands
on (errors, kernel, wire, net) and the top shelf that users touch (control, client, command line),
and nothing of the tiers between, which it starts as processes and never imports.
"""
