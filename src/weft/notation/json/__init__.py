"""Programs, costs, timelines, graphs, models and devices as versioned JSON."""
