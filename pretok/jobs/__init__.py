"""Jobs: what a command does, composed of stages. A job meets the next one on disk."""

VERIFY_DOCUMENTS = 300
"""How many documents verification encodes again where nobody says."""
