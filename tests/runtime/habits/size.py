"""The size of a value: every layer maps (rows, LENGTH, WIDTH) to the same."""

WIDTH = 4
LENGTH = 3
WORDS = 7
