#!/bin/bash
# DDP and Horovod, each started by srun on two nodes with four ranks, and compared: sbatch hostfiles/slurm/srun.sh
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=0:30:00
set -e
runs=results/slurm-$SLURM_JOB_ID
srun python -m runners.ddp --workload digits -o "$runs/ddp"
srun --mpi=pmix python -m runners.hvd --workload digits -o "$runs/horovod-mpi"
srun python -m runners.hvd --transport gloo --workload digits -o "$runs/horovod-gloo"
ringside report "$runs"/*/ --baseline ddp -o "$runs/report"
