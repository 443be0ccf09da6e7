"""Ranks: the processes of a run, how they meet, and the small things that they say."""
