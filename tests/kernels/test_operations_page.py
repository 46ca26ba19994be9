import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECLARATION = re.compile(r"^RH_API [\w* ]+?\b(rh_\w+)\(", re.MULTILINE)


def test_every_function_of_the_interface_is_on_the_reference_page() -> None:
    headers = [path.read_text() for path in (ROOT / "kernels/include/rankhouse").glob("*.h")]
    declared = {name for header in headers for name in DECLARATION.findall(header)}
    page = (ROOT / "docs/operations.md").read_text()
    mentioned = set(re.findall(r"\brh_\w+", page))
    assert len(declared) > 50
    assert declared <= mentioned, f"missing in docs/operations.md: {sorted(declared - mentioned)}"
    types = {"rh_executor"}
    assert mentioned <= declared | types, f"not declared anywhere: {sorted(mentioned - declared - types)}"
