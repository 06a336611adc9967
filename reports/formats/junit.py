"""junit.xml: each candidate is a test case, for programs that show or gate on test results."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree

from measurement.errors import in_report
from reports.base import Report
from reports.parts_schema import Against, Change
from reports.schema import ArmSummary, Comparison, RatioSummary, Study

PROPERTIES = ("throughput_ratio", "ci_low", "ci_high", "confidence", "verdict", "launches")
OF_CHANGES = ("before", "after", "verdict", "launches_before", "launches_after")


class JunitReport(Report):
    """A candidate that failed or computed wrongly is a failure; its ratio stands in the test case's properties.

    The baseline is a test case, too, if it is not ok, since nothing was compared then. A slower candidate is no failure: what to
    do about a ratio is for the reader to decide. Held against an earlier result, every throughput and every ratio is a test case of
    another suite, and a failure where it lost more than was allowed.
    """

    file_name = "junit.xml"
    is_customary = False

    def render(self, summary: Comparison | Study) -> bytes:
        if isinstance(summary, Study):
            suites = [_suite(f"{summary.name}.{point.name}", point.arms, point.results) for point in summary.points]
            return _document(summary.name, *suites)
        suites = [_suite(summary.name, summary.arms, summary.results)]
        if against := summary.against:
            name = f"{summary.name}.against"
            suites.append(_counted(name, [_change(name, against, change) for change in against.changes]))
        return _document(summary.name, *suites)


def _document(name: str, *suites: ElementTree.Element) -> bytes:
    root = ElementTree.Element("testsuites", name=name)
    root.extend(suites)
    for element in root.iter():
        element.attrib = {name: in_report(value) for name, value in element.attrib.items()}
        element.text = in_report(element.text) if element.text else None
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _suite(name: str, arms: list[ArmSummary], results: list[RatioSummary]) -> ElementTree.Element:
    shown = [arm for arm in arms if arm.role == "candidate" or (arm.role in ("baseline", "other input") and arm.status != "ok")]
    by_arm: dict[str, list[RatioSummary | None]] = {arm.name: [None] for arm in shown}
    by_arm |= {name: [result for result in results if result.candidate == name] for name in {one.candidate for one in results}}
    return _counted(name, [_case(name, arm, result) for arm in shown for result in by_arm[arm.name]])


def _counted(name: str, cases: list[ElementTree.Element]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(cases)), errors="0")
    for attribute, kind in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    suite.extend(cases)
    return suite


def _case(suite: str, arm: ArmSummary, result: RatioSummary | None) -> ElementTree.Element:
    name = f"{arm.name} {result.case}" if result is not None and result.case is not None else arm.name
    case = _with_properties(suite, name, {field: getattr(result, field, None) for field in PROPERTIES})
    if arm.status in ("not measured", "not at this point"):
        ElementTree.SubElement(case, "skipped", message=arm.status)
    elif arm.status != "ok":
        failure = ElementTree.SubElement(case, "failure", type=arm.status)
        failure.set("message", arm.errors[0].message if arm.errors else arm.status)
        failure.text = "\n".join(text for error in arm.errors for text in error.log_tail.values())
    return case


def _change(suite: str, against: Against, change: Change) -> ElementTree.Element:
    name = " ".join([change.arm, *([change.case] if change.case else []), "ratio" if change.baseline else "throughput"])
    estimate = {"change": change.change.value, "change_ci_low": change.change.ci_low, "change_ci_high": change.change.ci_high}
    case = _with_properties(suite, name, {**{field: getattr(change, field) for field in OF_CHANGES}, **estimate})
    if change.is_beyond:
        lost = f"{change.arm} lost {1 - change.change.value:.1%} since {against.created_at}; {against.allow_slower:.1%} is allowed"
        ElementTree.SubElement(case, "failure", type="regressed", message=lost).text = against.headline
    return case


def _with_properties(suite: str, name: str, values: Mapping[str, object]) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=suite, name=name)
    properties = ElementTree.SubElement(case, "properties")
    for field, value in values.items():
        if value is not None:
            ElementTree.SubElement(properties, "property", name=field, value=str(value))
    return case
