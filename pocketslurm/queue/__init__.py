"""The queue: what slurmctld, slurmd and slurmstepd do for a job."""
