#!/bin/bash
# Horovod over MPI, started by Open MPI's mpirun, which takes nodes and slots from Slurm: sbatch hostfiles/slurm/mpirun.sh
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=0:30:00
set -e
run=results/slurm-$SLURM_JOB_ID/horovod
mpirun --bind-to none python -m runners.hvd --workload digits -o "$run"
ringside report "$run" -o "$run-report"
