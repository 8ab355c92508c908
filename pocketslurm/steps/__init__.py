"""Job steps: what srun does."""
