"""torchao's schemes and mixed precision, through the whole pipeline."""
