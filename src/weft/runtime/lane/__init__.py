"""Lanes: the lowered program of a rank, bound to handlers and walked in one order."""
