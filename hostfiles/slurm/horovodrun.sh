#!/bin/bash
# Horovod, started by horovodrun, which reaches the other nodes by ssh: only where the site allows that. sbatch hostfiles/slurm/horovodrun.sh
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=0:30:00
set -e
run=results/slurm-$SLURM_JOB_ID/horovod
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\$/:$SLURM_NTASKS_PER_NODE/" | paste -sd,)
horovodrun -np "$SLURM_NTASKS" -H "$hosts" python -m runners.hvd --workload digits -o "$run"
ringside report "$run" -o "$run-report"
