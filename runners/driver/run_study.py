"""A study: the same comparison at several points, one after another, each with the whole method and
a folder of its own.

What cannot run is refused before the first point begins. If a point fails later, its cause is
recorded and the others go on.
"""

from __future__ import annotations

from backends import backend_class
from backends.single import Single
from measurement.errors import PlanError, RingsideError, about
from measurement.plans.plan import Plan
from measurement.plans.plan_file import plan_at, world_size_at
from measurement.records.results import ResultsFolder
from reports import write_reports
from reports.schema import Comparison
from runners.driver.comparison_folder import (
    new_manifest,
    open_folder,
    require_same_plan,
)
from runners.driver.run_comparison import ComparisonRun
from runners.planning.workload import resolve_workload
from runners.progress import LaunchProgress
from workloads import MicroBenchmark


def point_plans(study: Plan) -> dict[str, Plan]:
    """Return the plan of each point.

    Arms of a single process are left out of points with more ranks, unless they train: then they
    have the global batch.
    """
    is_timed = study.training is None
    backends = {name: backend_class(arm.backend) for name, arm in study.arms.items() if is_timed}
    alone = {
        name
        for name, cls in backends.items()
        if issubclass(cls, Single) and not cls.takes_all_ranks_batches
    }
    return {
        name: plan_at(study, name, without=alone if world_size_at(study, name) > 1 else ())
        for name in study.points
    }


class StudyRun:
    """Runs every point of a plan into a folder."""

    def __init__(
        self, study: Plan, folder: ResultsFolder, *, resume_elsewhere: bool = False
    ) -> None:
        if issubclass(
            resolve_workload(study.workload, study.workload_options).workload, MicroBenchmark
        ):
            raise PlanError(
                f"workload '{study.workload}' is a micro-benchmark, and points are for training;"
                " make a plan for each place"
            )
        self.study = study
        self.folder = folder
        self.runs: dict[str, ComparisonRun] = {}
        self.comparison: Comparison | None = None
        plans = point_plans(study)
        for number, (name, plan) in enumerate(plans.items(), start=1):
            progress = LaunchProgress(
                seconds_per_launch=plan.measurement.expected_launch_s,
                point=f"{name} ({number} of {len(plans)})",
                later_launches=plan.measurement.expected_launches * (len(plans) - number),
            )
            with about(f"point '{name}'"):
                self.runs[name] = ComparisonRun(
                    plan, folder.point(name), progress=progress, resume_elsewhere=resume_elsewhere
                )

    def prepare(self) -> None:
        """Refuse what cannot work at some point, before a process starts or a file is written."""
        require_same_plan(self.folder, self.study)
        is_data_read = False
        for name, run in self.runs.items():
            if not run.is_measured:
                with about(f"point '{name}'"):
                    run.check_hosts()
                if run.compared.has_ranks_here and not is_data_read:
                    run.compared.require_data()  # all points train on the same
                    is_data_read = True
        open_folder(self.folder, self.study)

    def run(self) -> Comparison:
        """Run the launches that have no records yet, then write all reports, also after Ctrl-C,
        which is raised again.
        """
        is_resumed = self.folder.manifest_path.is_file()
        manifest = (
            self.folder.read_manifest() if is_resumed else new_manifest(self.folder, self.study)
        )
        self.folder.write_manifest(manifest)
        try:
            for name, run in self.runs.items():
                manifest.failed_points.pop(name, None)
                try:
                    with run.progress:
                        if not run.is_measured:
                            run.check_hosts()  # again, since other points were measured meanwhile
                        open_folder(run.folder, run.plan)
                        run.run()
                except RingsideError as error:
                    manifest.failed_points[name] = str(error)
                self.folder.write_manifest(manifest)
        finally:
            self.comparison = write_reports(self.folder)
        return self.comparison
