"""torch's table of a schedule: one row for each rank, one cell for each action.

    0F0,0F1,,0B0,(2F0;2B1)OVERLAP_F_B                   computations alone; torch adds the rest
    0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD              lowered: all that a rank does, in order

A rank of a lowered table issues its cells one by one. Sends and receives return at once, and a
computation waits for its own receive. A receive stands anywhere in front of that, a send anywhere
after what it sends. No message carries a name: from one rank to another, the
first receive gets what was sent first, activations and gradients alike. So a pair of ranks has
one channel each way, which carries both.
"""
