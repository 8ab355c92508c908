"""Renders the script of a resolved job."""
