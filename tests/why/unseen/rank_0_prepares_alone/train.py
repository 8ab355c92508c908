import torch.distributed as dist
from datasets import load_dataset
dist.init_process_group("nccl")
rank = dist.get_rank()
if rank > 0:
    print(f"{now()} rank {rank}: waiting for main process to tokenize", flush=True)
    dist.barrier()
ds = load_or_tokenize(num_proc=1)
if rank == 0:
    dist.barrier()
