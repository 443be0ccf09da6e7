"""Programs, costs, timelines and graphs as versioned JSON."""
