"""A run without a driver: takes the gate, then measures throughput or trains to the end. Rank 0 prints and writes the record.

Typer makes the command line of ``command_line(backend)``; ``start.py`` is where a process begins.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from backends import backend_class, check_options
from measurement.conditions.disturbing_variables import disturbances, told
from measurement.environment import steering_environment
from measurement.errors import ParityError, PlanError, RingsideError
from measurement.plans.plan import Plan
from measurement.plans.plan_file import check_plan
from measurement.plans.settings import Precision
from measurement.records.record import LaunchRecord, RankReport
from measurement.records.results import ResultsFolder, default_folder, folder_name
from measurement.records.step_tables import steps_of
from measurement.registry import search_beside
from measurement.world import HOROVOD, MPI, World
from runners.hosts.network import use_interface
from runners.launchers import horovodrun, mpirun, read_own_world
from runners.planning.arms import job_of, require_gpu_here
from runners.planning.check_process import is_to_check, require_workable_here
from runners.planning.compatibility import require_given
from runners.planning.left_variables import libraries_of
from runners.planning.workload import resolve_workload
from runners.processes.process_exit import leave, say_once
from runners.processes.readable_output import make_output_readable
from runners.protocol.gate_verdict import judge_gate
from runners.protocol.lost_peers import CAUSE_FIRST_S, tells_of_lost_peer
from runners.protocol.messages import CheckReport, ParityReport
from runners.rank.engine import Engine, start_engine
from runners.rank.remote_error import report_error
from runners.rank.resources import take_resources, threads_of
from runners.standalone import flags
from runners.standalone.flags import CheckpointOptions, TrainingOptions
from runners.standalone.joint_start import joint_start
from runners.standalone.kept_blocks import KeptBlocks
from runners.standalone.rendezvous import rendezvous_store
from runners.standalone.throughput import LOCAL_EVERY, StandaloneSettings, measure
from runners.standalone.training_run import TrainingRun
from workloads import REGISTRY

if TYPE_CHECKING:
    from runners.event_log import TensorboardLog

MAY_BE_HOROVODRUN = (horovodrun.VARIABLES.name, mpirun.VARIABLES.name)
"""Over MPI its ranks are mpirun's."""
DEVICES = ("auto", "cpu", "cuda")


def epilog(backend: str) -> str:
    """What ``--help`` says below the flags: the workloads there are, and the options of this backend."""
    fields = backend_class(backend).Options.model_fields
    options = ", ".join(f"{name}={field.get_default(call_default_factory=True)}" for name, field in fields.items())
    workloads = ", ".join(sorted(REGISTRY.names()))
    return (
        f"--workload: {workloads}; a torchvision model, such as resnet50; yours by package.module:Class or path/to/file.py:Class, "
        f"which 'ringside check' tries out.\n\n--option of {backend}, with defaults: {options or 'none'}."
    )


def command_line(backend: str) -> Callable[..., None]:
    """The function whose arguments are the options on the command line."""

    def measure(
        workload: flags.WorkloadName = "digits",
        own_backend: flags.BackendReference = None,
        workload_option: flags.WorkloadOption = None,
        local_batch_size: flags.LocalBatchSize = 32,
        micro_steps: flags.MicroSteps = 1,
        transport: flags.Transport = None,
        option: flags.BackendOption = None,
        blocks: flags.Blocks = 10,
        block_steps: flags.BlockSteps = 20,
        warmup_steps: flags.WarmupSteps = 10,
        parity_steps: flags.ParitySteps = 3,
        threads: flags.Threads = None,
        affinity: flags.Affinity = "spread",
        freed_memory: flags.FreedMemory = "return",
        no_local: flags.NoLocal = False,
        precision: flags.Precision = "fp32",
        loss_scale: flags.LossScale = None,
        loss_scale_growth_interval: flags.GrowthInterval = None,
        max_gradient_norm: flags.MaxGradientNorm = None,
        compiled: flags.Compile = False,
        channels_last: flags.ChannelsLast = False,
        cudnn_benchmark: flags.CudnnBenchmark = False,
        tf32: flags.Tf32 = False,
        sync_batchnorm: flags.SyncBatchnorm = False,
        epochs: flags.Epochs = None,
        target_accuracy: flags.TargetAccuracy = None,
        learning_rate_scaling: flags.LearningRateScaling = None,
        warmup_epochs: flags.WarmupEpochs = None,
        decay_epochs: flags.DecayEpochs = None,
        data_dir: flags.DataDir = None,
        download: flags.Download = False,
        pretrained: flags.Pretrained = None,
        new_head: flags.NewHead = False,
        learning_rate: flags.LearningRate = None,
        momentum: flags.Momentum = None,
        weight_decay: flags.WeightDecay = None,
        label_smoothing: flags.LabelSmoothing = None,
        workers: flags.Workers = None,
        checkpoint: flags.CheckpointFile = None,
        checkpoint_steps: flags.CheckpointSteps = None,
        resume: flags.Resume = False,
        start_epoch: flags.StartEpoch = None,
        print_every: flags.PrintEvery = None,
        evaluate: flags.Evaluate = False,
        tensorboard: flags.TensorboardFolder = None,
        seed: flags.Seed = 1,
        device: flags.Device = "auto",
        network_interface: flags.Interface = None,
        timeout: flags.Timeout = 300.0,
        local_rank: flags.LocalRank = None,
        output: flags.Output = None,
    ) -> None:
        """Measure the throughput of one workload on the ranks this was started on, or train it with --epochs."""
        flags.require_one_of("--device", device, DEVICES)
        flags.require_one_of("--precision", precision, get_args(Precision))
        flags.require_one_of("--affinity", affinity, ("spread", "none"))
        flags.require_one_of("--freed-memory", freed_memory, ("keep", "return"))
        if max_gradient_norm is not None and not max_gradient_norm > 0:
            raise PlanError(f"--max-gradient-norm {max_gradient_norm:g} is not greater than 0; leave it out to clip nothing")
        training = flags.read_training(
            epochs,
            {
                "--target-accuracy": target_accuracy,
                "--learning-rate-scaling": learning_rate_scaling,
                "--warmup-epochs": warmup_epochs,
                "--decay-epochs": decay_epochs,
                "--checkpoint": checkpoint,
                "--checkpoint-steps": checkpoint_steps,
                "--resume": resume,
                "--start-epoch": start_epoch,
                "--print-every": print_every,
                "--evaluate": evaluate,
            },
        )
        shorthands = {
            "--data-dir": data_dir,
            "--download": download,
            "--pretrained": pretrained,
            "--new-head": new_head,
            "--workers": workers,
            "--learning-rate": learning_rate,
            "--momentum": momentum,
            "--weight-decay": weight_decay,
            "--label-smoothing": label_smoothing,
        }
        use_interface(network_interface)
        world = read_own_world()
        if world.launcher in MAY_BE_HOROVODRUN:
            make_output_readable()
        flags.require_own_local_rank(local_rank, world)
        measured = StandaloneSettings(
            warmup_steps=warmup_steps,
            blocks=blocks,
            block_steps=block_steps,
            parity_steps=parity_steps,
            local_every=0 if no_local or training else LOCAL_EVERY,
            timeout=timedelta(seconds=timeout),
        )
        threads = threads_of(world, asked=threads, environment=os.environ)
        asked: dict[str, Any] = {
            "workload": workload,
            "workload_options": flags.workload_options(workload, flags.settings(workload_option, "--workload-option"), shorthands),
            "local_batch_size": local_batch_size,
            "micro_steps": micro_steps,
            "seed": seed,
            "device": device,
            "precision": precision,
            "loss_scale": flags.given(initial=loss_scale, growth_interval=loss_scale_growth_interval),
            "max_gradient_norm": max_gradient_norm,
            "speed": {
                "compile": compiled,
                "channels_last": channels_last,
                "cudnn_benchmark": cudnn_benchmark,
                "tf32": tf32,
                "sync_batchnorm": sync_batchnorm,
            },
            "training": training.model_dump() if training else None,
            "threads": threads,
            "affinity": affinity,
            "freed_memory": freed_memory,
            "measurement": measured.as_measurement(),
        }
        plan = resolve_plan(own_backend or backend, asked, world, transport=transport, options=flags.settings(option, "--option"))
        checkpointing = flags.read_checkpoint_options(checkpoint, every_steps=checkpoint_steps, resume=resume)
        folder = ResultsFolder(output or default_folder(f"{plan.baseline}-{folder_name(workload)}"))
        if world.rank == 0:
            require_new(folder)
        take_resources(world, threads=threads, affinity=affinity, freed_memory=freed_memory)
        options = TrainingOptions(start_epoch=start_epoch or 0, print_every=print_every, evaluates_only=evaluate)
        run(plan, world, measured, options=options, checkpointing=checkpointing, events=tensorboard, folder=folder)

    return measure


def resolve_plan(backend: str, asked: Mapping[str, Any], world: World, *, transport: str | None, options: dict[str, Any]) -> Plan:
    """Make a plan with these ranks as its single arm, and refuse what cannot work.

    Raises:
        PlanError: the launcher does not give what the backend needs, or the backend cannot do what is asked.
    """
    name, cls = folder_name(backend), backend_class(backend)
    if transport is None and world.launcher == "srun" and HOROVOD in cls.needs(None):
        transport = "mpi" if MPI in world.gives else "gloo"  # Horovod would look for variables of horovodrun's or mpirun's
    if world.world_size > 1:
        require_given(world.gives, launcher=world.launcher, backend=backend, transport=transport)
    arm = {"backend": backend, "transport": transport, "options": options}
    content = {**asked, "name": name, "world_size": world.world_size, "baseline": name, "arms": {name: arm}}
    plan = check_plan(content, source="command line")
    require_gpu_here(plan.device, transport)
    if world.rank == 0:
        for warning in told({name: disturbances(os.environ, cls.steered_by | libraries_of(plan.device))}):
            print(f"warning: {warning}", file=sys.stderr, flush=True)
    checked_options = check_options(backend, options, source=f"options of backend '{backend}'")
    cls.check(transport=transport, options=checked_options, micro_steps=plan.micro_steps, world_size=plan.world_size)
    return plan


def require_new(folder: ResultsFolder) -> None:
    """Refuse a folder that holds a run already: what was measured is never overwritten.

    Raises:
        PlanError: with what to do.
    """
    if folder.plan_path.exists() or any(folder.root.glob("launch-*")):
        raise PlanError(f"'{folder.root}' holds a run already; give another folder with -o, one for each run, or remove it")


def run(
    plan: Plan,
    world: World,
    measured: StandaloneSettings,
    *,
    options: TrainingOptions,
    checkpointing: CheckpointOptions | None = None,
    events: Path | None = None,
    folder: ResultsFolder,
) -> None:
    """Run one rank from start to end. Collective; rank 0 prints and writes.

    An exception that is no ``RingsideError`` ends this process at once, without the other ranks, who may wait for it elsewhere.

    Raises:
        ParityError: on every rank, when gradients, or the results of operations, are wrong.
    """
    try:
        _run(plan, world, measured, options=options, checkpointing=checkpointing, events=events, folder=folder)
    except RingsideError:
        raise
    except Exception as error:  # noqa: BLE001 - the edge of a rank that has no driver to tell
        _say(error, world, folder)
        leave(1)


def _say(error: Exception, world: World, folder: ResultsFolder) -> None:
    """Print why this rank ends, once, and before it ends what keeps others from noticing."""
    if getattr(error, "is_said", False):
        return
    if tells_of_lost_peer(str(error)):
        time.sleep(CAUSE_FIRST_S)
    if isinstance(error, RingsideError):
        say_once(error)
        return
    who = f"rank {world.rank} on {socket.gethostname()}" if world.world_size > 1 else "the rank"
    report_error(error, who=who, folder=folder.root, name=f"rank-{world.rank}-traceback.txt")
    error.is_said = True  # type: ignore[attr-defined]


def _run(
    plan: Plan,
    world: World,
    measured: StandaloneSettings,
    *,
    options: TrainingOptions,
    checkpointing: CheckpointOptions | None,
    events: Path | None,
    folder: ResultsFolder,
) -> None:
    began = time.monotonic()
    search_beside(Path.cwd())
    arm = plan.arms[plan.baseline]
    job = job_of(plan, plan.baseline, arm, transport=arm.transport)
    chosen = resolve_workload(job.workload, job.workload_options)
    if world.rank == 0 and is_to_check(chosen):
        for note in require_workable_here(plan, job):
            print(f"note: {note}", flush=True)
    store = rendezvous_store(job, world, timeout=measured.timeout)
    with joint_start(store, world, say=partial(_say, world=world, folder=folder)):
        engine = start_engine(job, world, store=store, timeout=measured.timeout)
    for note in engine.data_notes:
        _speaker(engine)(f"note: {note}")
    record: LaunchRecord | None = None
    kept = KeptBlocks(folder, plan, rank=engine.runner.world.rank)
    try:
        log = _log(events, engine) if events and engine.runner.world.rank == 0 else None
        training = (
            TrainingRun(engine, job.training, options=options, checkpointing=checkpointing, say=_speaker(engine), events=log)
            if job.training
            else None
        )
        record = _record(engine, plan, comparison_id=folder.root.name)
        _take_gate(engine, record, measured, before=True)
        record.start_s = time.monotonic() - began
        if training and options.evaluates_only:
            training.evaluate()
            engine.runner.release()
            engine.backend.teardown()
            return
        training.run(record) if training else measure(engine, record, measured, keep=kept.add)
        own = (engine.report(steering_environment(os.environ)), engine.peak_memory_bytes())
        _take_gate(engine, record, measured, before=False)
        reports = engine.backend.all_gather_object(own, tuple[RankReport, int])
        record.ranks = [report for report, _ in reports]
        record.peak_memory_bytes = [peak for _, peak in reports]
        record.hosts = sorted({report.host for report in record.ranks})
        if log is not None and training is None and not record.cases:
            log.rounds(record.blocks)
        if log is not None:
            log.close()
        if engine.runner.world.rank == 0:
            folder.write_plan(plan)
            _write_and_print(record, folder)
        kept.remove()
        engine.runner.release()
        engine.backend.barrier()
    except RingsideError as error:
        _say(error, world, folder)
        kept.remove()
        engine.backend.teardown()
        raise
    except BaseException as error:
        kept.write_record(record, error)
        raise
    engine.backend.teardown()


def _record(engine: Engine, plan: Plan, *, comparison_id: str) -> LaunchRecord:
    """Return the record that is to be filled. Collective."""
    record = engine.job.new_record(
        plan,
        comparison_id=comparison_id,
        launch=0,
        transport=str(engine.backend.describe().get("transport")),
        launcher=engine.world.launcher,
        sample_unit=engine.sample_unit,
        cases=list(engine.cases.values()),
        commands=[{"host": socket.gethostname(), "argv": sys.orig_argv}],
    )
    record.ranks = engine.backend.all_gather_object(engine.report(steering_environment(os.environ)), RankReport)
    record.hosts = sorted({report.host for report in record.ranks})
    return record


def _take_gate(engine: Engine, record: LaunchRecord, measured: StandaloneSettings, *, before: bool) -> None:
    """Take the parity gate, if it is now that it is due: before a training or a micro-benchmark, or after blocks. Collective.

    As under a driver, see ``runners.driver.gates``. A micro-benchmark's gate also tells what the backend offers.

    Raises:
        ParityError: on every rank, where it is not passed.
    """
    if before != engine.gate_comes_first or not (measured.parity_steps or record.cases):
        return
    reports = engine.backend.all_gather_object(engine.run_gate(steps=measured.parity_steps), ParityReport | CheckReport)
    record.parity, record.not_offered = judge_gate(reports, steps=measured.parity_steps)
    if not record.parity.passed:
        failures = "; ".join(record.parity.failures)
        raise ParityError(f"backend '{record.backend}' computes wrongly, so that no timing of it counts: {failures}")


def _log(events: Path, engine: Engine) -> TensorboardLog:
    from runners.event_log import TensorboardLog  # with scipy, which no other rank needs

    return TensorboardLog(events, sample_unit=engine.sample_unit)


def _speaker(engine: Engine) -> Callable[[str], None]:
    """Return a function that prints on rank 0, unbuffered although the output goes to a launcher."""

    def say(text: str) -> None:
        if engine.runner.world.rank == 0:
            print(text, flush=True)

    return say


def _write_and_print(record: LaunchRecord, folder: ResultsFolder) -> None:
    from reports.formats.terminal import new_console  # with scipy, which no other rank needs
    from runners.standalone.tables import cases_table, throughput_table

    folder.write_launch(record)
    steps = steps_of(record)
    console = new_console(plain=record.world_size > 1)  # mpirun gives ranks a terminal, whatever its own output is
    if not record.epochs:
        console.print(cases_table(record, steps) if record.cases else throughput_table(record, steps))
    where = folder.launch_folder(record.launch, record.arm) / "record.json"
    console.print(f"record: {where}", markup=False, highlight=False, soft_wrap=True)
