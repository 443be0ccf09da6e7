"""What schedules are written with: shapes, claims, and the orders they have in common."""
