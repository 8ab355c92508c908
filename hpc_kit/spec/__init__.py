"""What a user asks for: frozen values read from job and cluster files."""
