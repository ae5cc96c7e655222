"""Commands: one module each, a thin typer function around a job."""
