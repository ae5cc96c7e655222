"""Jobs: what a command does, composed of stages. A job meets the next one on disk."""
