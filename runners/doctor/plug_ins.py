"""What the doctor finds of plug-ins that installed packages register: where each comes from, and what is wrong with it."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from runners.doctor.software import Finding, finding, probe

LOADERS = {
    "ringside.workloads": "workloads.workload_class",
    "ringside.backends": "backends.backend_class",
    "ringside.launchers": "runners.launchers.make_launcher",
    "ringside.reports": "reports.make_report",
}
"""By entry-point group: the function that loads a reference, or refuses it in words."""

PLUG_IN_PROBE = """
import importlib, json, sys
from measurement.errors import RingsideError
loaders = {loaders!r}
found = []
for group, name in {asked!r}:
    module, _, function = loaders[group].rpartition(".")
    try:
        getattr(importlib.import_module(module), function)(name)
        found.append(None)
    except RingsideError as error:
        found.append(str(error))
    except Exception as error:
        found.append(type(error).__name__ + ": " + str(error))
print(json.dumps({{"errors": found}}))
"""


def plug_in_findings() -> Iterable[Finding]:
    """Each registered plug-in is loaded as a plan would load it, in a process of its own."""
    points = [point for group in LOADERS for point in sorted(entry_points(group=group), key=lambda point: point.name)]
    if not points:
        detail = "none registered (a plan can name classes by module:Class or path/to/file.py:Class)"
        return [finding("plug-ins", "installed", detail)]
    answer = probe(PLUG_IN_PROBE.format(loaders=LOADERS, asked=[(point.group, point.name) for point in points]))
    errors = [answer] * len(points) if isinstance(answer, str) else answer["errors"]
    return [_finding(point, error) for point, error in zip(points, errors, strict=True)]


def _finding(point: EntryPoint, error: str | None) -> Finding:
    kind = point.group.removeprefix("ringside.").removesuffix("s")
    source = f"{point.value}, from {point.dist.name} {point.dist.version}" if point.dist else point.value
    mend = f"mend or uninstall {point.dist.name if point.dist else point.value}; plans that do not name it are not concerned"
    detail = f"{source}: {error}" if error else source
    return finding("plug-ins", f"{kind} {point.name}", detail, mend if error else "")
