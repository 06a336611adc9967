#!/bin/bash
# DDP, started by one torchrun on each of two nodes: sbatch hostfiles/slurm/torchrun.sh
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:30:00
set -e
run=results/slurm-$SLURM_JOB_ID/ddp
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" \
  -m runners.ddp --workload digits -o "$run"
ringside report "$run" -o "$run-report"
