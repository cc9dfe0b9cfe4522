"""Several processes on torch.distributed: training, one compile a group, faults."""
