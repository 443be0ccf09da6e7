"""Programs as text: `to_text` and `from_text`, and `plain` for the eye."""
