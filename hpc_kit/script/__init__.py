"""From a resolved job to the text that sbatch gets, and back."""
