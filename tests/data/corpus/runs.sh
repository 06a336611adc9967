#!/usr/bin/env bash
# What made records.tar.xz, with the code of 1ec1af1: runs.sh FOLDER [NAME...], from the checkout.
# Names, paths and addresses of the machine were then replaced. lab-two-hosts needs root.
set -u
out=$1; shift
export PATH="$PWD/.venv/bin:$PATH"
scripts=benchmarks/users_scripts
compare() { ringside compare "$@" -o "$out/$name" --no-rehearsal; }
tiny=(--set measurement.rounds=8 --set measurement.block_steps=3 --set measurement.local_every=2 --set threads=1)
two="ddp-gloo: {backend: ddp, transport: gloo}, horovod-gloo: {backend: horovod, transport: gloo}"
few=(--set measurement.launches=2 "${tiny[@]}")
torchrun="torchrun --standalone --nproc-per-node 2" horovodrun="horovodrun --gloo -np 2"
hvd="$horovodrun python $scripts/train_hvd.py --epochs 4" ddp="$torchrun $scripts/train_ddp.py --epochs 4"
ab() { ringside ab "$@" -o "$out/$name" --steps 12 --seed-flag=--seed; }
standalone() {  # LAUNCHER RUNNER FOLDER
  $1 -m "runners.$2" --blocks 6 --block-steps 4 --warmup-steps 2 --threads 1 -o "$out/$name/$3"
}

three-arms() { compare local --set measurement.launches=5 "${tiny[@]}"; }
against() { three-arms; }  # held against three-arms
failed-arm() {
  compare local "${few[@]}" --set 'arms.raises={backend: "tests/distributed/plugins/wrong.py:Raises", transport: gloo}'
}
scripts() { ab "$hvd" "$ddp" --launches 4; }
unlike-work() { ab "$ddp" "$ddp --mistake lr-not-scaled" --name-b unscaled --launches 3; }
study() {
  compare scaling "${few[@]}" --set measurement.launches=3 --set 'points={one-rank: {world_size: 1}, two-ranks: {world_size: 2}}'
}
micro-benchmark() {
  compare collectives --set measurement.launches=3 --set measurement.rounds=4 --set measurement.block_steps=3 \
    --set threads=1 --set 'workload_options={operations: [all_reduce, broadcast], sizes: [1 KiB, 256 KiB]}'
}
training() {
  compare convergence --set measurement.launches=2 --set training.epochs=4 --set training.target_accuracy=0.9 --set threads=1 \
    --set workload_options.learning_rate=0.003 --set training.warmup_epochs=1 --set "arms={single: {backend: single}, $two}"
}
standalone-runs() {
  for run in 1 2 3; do
    standalone "$torchrun" ddp "ddp-$run"
    standalone "$horovodrun python" hvd "hvd-$run"
  done
}
traced() { compare local "${few[@]}" --trace; }
tuning() {
  ringside tune local -o "$out/$name" --trials 3 "${few[@]}" --set measurement.rehearsal=never \
    --set measurement.launches=3 --set "arms={$two}"
}
lab-two-hosts() {
  ringside lab up --hosts 2 --rate 1gbit &&
    ringside lab run -- ringside compare two-hosts -o "$out/$name" --no-rehearsal "${few[@]}" \
      --set measurement.launches=3 --set measurement.rounds=4 --set world_size=2 --set hosts=host1:1,host2:1
  ringside lab down
}

for name in ${*:-three-arms against failed-arm scripts unlike-work study micro-benchmark training standalone-runs traced tuning lab-two-hosts}; do
  "$name" || echo "$name ended with $?"
done
