"""junit.xml: each candidate is a test case, for programs that show or gate on test results."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree

from measurement.errors import in_report
from reports.base import Report
from reports.parts_schema import Against, Change
from reports.schema import ArmSummary, Comparison
from reports.tables.figures import CHANGE, RATIO, ArmRow, arm_rows, columns


class JunitReport(Report):
    """A candidate that failed or computed wrongly is a failure; its ratio stands in the test case's properties.

    The baseline is a test case, too, if it is not ok, since nothing was compared then. A slower candidate is no failure: what to
    do about a ratio is for the reader to decide. Held against an earlier result, every throughput and every ratio is a test case of
    another suite, and a failure where it lost more than was allowed.
    """

    file_name = "junit.xml"
    is_customary = False

    def render(self, summary: Comparison) -> bytes:
        suites = []
        for place in summary.places:
            name = f"{summary.name}.{place}" if place else summary.name
            rows = [row for row in arm_rows(summary, by_case=True) if row.place == place]
            suites.append(_suite(name, [_case(name, row) for row in rows if _is_shown(row.arm)]))
        if against := summary.against:
            name = f"{summary.name}.against"
            suites.append(_suite(name, [_change(name, against, change) for change in against.changes]))
        return _document(summary.name, *suites)


def _is_shown(arm: ArmSummary) -> bool:
    return arm.role == "candidate" or (arm.role == "baseline" and arm.status != "ok")


def _document(name: str, *suites: ElementTree.Element) -> bytes:
    root = ElementTree.Element("testsuites", name=name)
    root.extend(suites)
    for element in root.iter():
        element.attrib = {name: in_report(value) for name, value in element.attrib.items()}
        element.text = in_report(element.text) if element.text else None
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _suite(name: str, cases: list[ElementTree.Element]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(cases)), errors="0")
    for attribute, kind in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    suite.extend(cases)
    return suite


def _case(suite: str, row: ArmRow) -> ElementTree.Element:
    arm = row.arm
    name = f"{arm.name} {row.case.name}" if row.case else arm.name
    case = _with_properties(suite, name, columns(RATIO, row))
    if arm.status in ("not measured", "not at this point"):
        ElementTree.SubElement(case, "skipped", message=arm.status)
    elif arm.status != "ok":
        failure = ElementTree.SubElement(case, "failure", type=arm.status)
        failure.set("message", arm.errors[0].message if arm.errors else arm.status)
        failure.text = "\n".join(text for error in arm.errors for text in error.log_tail.values())
    return case


def _change(suite: str, against: Against, change: Change) -> ElementTree.Element:
    name = " ".join([change.arm, *([change.case] if change.case else []), "ratio" if change.baseline else "throughput"])
    case = _with_properties(suite, name, columns(CHANGE, change))
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
