"""The kernel is what all tiers agree on: the bytes of a page, the bytes of redo, and the one
function that applies redo to a page. Everything here is a plain function of plain values.
"""
