"""Weft: pipeline schedules as programs, proved, simulated, drawn and executed.

    from weft.schedules import one_f_one_b
    from weft.simulate import simulate

    timeline = simulate(one_f_one_b(devices=4, microbatches=8))
    timeline.makespan, timeline.bubble, timeline.peak_activations

`import weft` alone loads nothing else: each part is imported where it is used.
"""

__version__ = "0.1.0"
