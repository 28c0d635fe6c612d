"""The determinism rules: what workflow code must not do, found by reading its source.

`refuse` stands at a workflow's declaration, `check_paths` behind `harvest lint`. No user code is run or imported.
"""

from harvest.definitions.lint.checking import check_function
from harvest.definitions.lint.files import Report, check_paths
from harvest.definitions.lint.finding import Finding
from harvest.definitions.lint.importing import refuse
from harvest.definitions.lint.rules import RULES, Rule, Severity

__all__ = ["RULES", "Finding", "Report", "Rule", "Severity", "check_function", "check_paths", "refuse"]
