"""The instruction set: what a schedule is, and when each of its actions may start."""
