"""What docs/rollout.md says of other tools and of the command line is so."""

import re
from pathlib import Path
from typing import Any

import httpx
import yaml

from rankhouse.cli import rollout as commands
from tests.serving.admin.world import SPEC, RunningAdmin

PAGE = (Path(__file__).parents[3] / "docs" / "rollout.md").read_text()


def examples() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def local(url: str, admin: RunningAdmin) -> str:
    return admin.url + url.partition("ranker:8082")[2]


def test_argo_rollouts_finds_what_its_conditions_name(admin: RunningAdmin, client: httpx.Client) -> None:
    client.post("/rollouts", json={"spec": SPEC})
    template = next(each for each in examples() if each.get("kind") == "AnalysisTemplate")
    for metric in template["spec"]["metrics"]:
        web = metric["provider"]["web"]
        assert web["jsonPath"] == "{$.data}"
        value = web["headers"][0]["value"].replace("{{ args.admin-key }}", admin.key)
        headers = {web["headers"][0]["key"]: value}
        result = httpx.get(local(web["url"], admin), headers=headers, timeout=60.0).json()["data"]
        for condition in (metric["successCondition"], metric["failureCondition"]):
            assert re.findall(r"result\.(\w+)", condition)[0] in result


def test_flagger_finds_its_gates_and_its_numbers(admin: RunningAdmin, client: httpx.Client) -> None:
    client.post("/rollouts", json={"spec": SPEC})
    canary = next(
        each for each in examples() if "webhooks" in each.get("analysis", {}) and "threshold" in each["analysis"]
    )
    payload = {"name": "ranker", "namespace": "prod", "phase": "Progressing", "metadata": {}}
    statuses = {
        hook["type"]: httpx.post(
            local(hook["url"], admin), json=payload, auth=("flagger", admin.key), timeout=60.0
        ).status_code
        for hook in canary["analysis"]["webhooks"]
    }
    assert statuses == {"rollout": 200, "confirm-promotion": 403, "rollback": 403}
    template = next(each for each in examples() if each.get("kind") == "MetricTemplate")["spec"]
    for query, number in ((template["query"], 0), ("vector(1)", 1)):
        url = f"{local(template['provider']['address'], admin)}/api/v1/query"
        answer = httpx.get(url, params={"query": query}, auth=("any", admin.key), timeout=60.0).json()
        assert len(answer["data"]["result"]) == number


def test_every_command_stands_in_the_page() -> None:
    section = PAGE.partition("## The command line")[2].partition("\n## ")[0]
    names = [command.name or getattr(command.callback, "__name__", "") for command in commands.app.registered_commands]
    for name in names:
        assert re.search(rf"`{name}\b", section), name
