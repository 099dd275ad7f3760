# SPDX-License-Identifier: Apache-2.0
"""manifests_test.py: config/examples/kubernetes, by what the API servers accept (shapes.yaml, in
our words) and by what elastrun is. ELASTRUN_CRDS names a folder with the operators' own
CustomResourceDefinitions, which are asked as well."""
from __future__ import annotations

import os
import re
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import jsonschema
    import yaml
except ImportError:
    print("SKIPPED: jsonschema or yaml is not in this Python")
    sys.exit(77)

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
FOLDER = ROOT / "config/examples/kubernetes"
SHAPES = yaml.safe_load((HERE / "shapes.yaml").read_text())
CRDS = Path(os.environ["ELASTRUN_CRDS"]) if "ELASTRUN_CRDS" in os.environ else None


def schema_of(shape: Any) -> dict[str, Any]:
    """The JSON Schema of a shape of shapes.yaml."""
    if isinstance(shape, list):
        item, *limits = shape
        return {"type": "array", "items": schema_of(item),
                **dict(zip(("minItems", "maxItems"), limits))}
    if isinstance(shape, dict):
        if "*" in shape:
            return {"type": "object", "additionalProperties": schema_of(shape["*"])}
        made = {"type": "object", "additionalProperties": False,
                "properties": {key.rstrip("?^"): schema_of(value) for key, value in shape.items()},
                "required": [key for key in shape if key[-1] not in "?^"]}
        one_of = [{"required": [key[:-1]]} for key in shape if key.endswith("^")]
        return {**made, "oneOf": one_of} if one_of else made
    if shape[0] == "=":
        return {"enum": shape[1:].split("|")}
    return {"type": "string", "pattern": shape} if shape[0] == "^" else SCHEMAS[shape]


SCHEMAS = SHAPES["schemas"]
for name, shape in SHAPES["shapes"].items():  # each after those that it names
    SCHEMAS[name] = schema_of(shape)
KINDS = {}
for of, shape in SHAPES["kinds"].items():
    kind, version = of.split()
    KINDS[kind] = schema_of(
        {"apiVersion": "=" + version, "kind": "=" + kind, "metadata": "meta", "spec": shape})


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def find(value: Any, key: str) -> Iterator[Any]:
    """Every value of that key, wherever it is."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for one in value.values():
            yield from find(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from find(one, key)


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The specs of pods within a document."""
    return [t["spec"] for t in find(document, "template") if "containers" in t.get("spec", {})]


def problems(schema: dict[str, Any], document: Any) -> list[str]:
    checker = jsonschema.Draft202012Validator(schema)
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:300]}"
            for e in checker.iter_errors(document)]


def strict(schema: Any) -> Any:
    """A schema of a CustomResourceDefinition, refusing what the server would drop in silence."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {k: strict(v) for k, v in schema.items()}
    open_to_more = made.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        if made["properties"] and not open_to_more:
            made.setdefault("additionalProperties", False)
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


class Manifests(unittest.TestCase):
    def test_each_has_the_shape_of_its_kind(self) -> None:
        kinds = set()
        for name, document in documents():
            with self.subTest(name, kind=document["kind"]):
                kinds.add(document["kind"])
                self.assertEqual(problems(KINDS[document["kind"]], document), [])
        self.assertEqual(kinds, set(KINDS))

    def test_a_misspelt_key_is_found(self) -> None:
        _, document = next((n, d) for n, d in documents() if d["kind"] == "Job")
        pods(document)[0]["containers"][0]["livenessprobe"] = {}
        self.assertIn("livenessprobe", "".join(problems(KINDS["Job"], document)))

    @unittest.skipUnless(CRDS, "ELASTRUN_CRDS is not set")
    def test_the_operators_own_definitions_accept_them(self) -> None:
        definitions = {}
        for path in CRDS.glob("*.yaml"):
            spec = yaml.safe_load(path.read_text())["spec"]
            version = max(spec["versions"], key=lambda one: one.get("storage", False))
            definitions[spec["names"]["kind"]] = strict(version["schema"]["openAPIV3Schema"])
        asked = 0
        for name, document in documents():
            if document["kind"] == "Job":  # JobSet's definition has all of its spec
                inner = definitions["JobSet"]["properties"]["spec"]["properties"]
                inner = inner["replicatedJobs"]["items"]["properties"]["template"]
                schema, document = inner["properties"]["spec"], document["spec"]
            elif document["kind"] in definitions:
                schema = definitions[document["kind"]]
                schema["properties"]["metadata"] = {"type": "object"}
            else:
                continue
            asked += 1
            with self.subTest(name):
                self.assertEqual(problems(schema, document), [])
        self.assertEqual(asked, 5)

    def test_pods_get_elastrun_from_one_volume(self) -> None:
        seen = 0
        for name, document in documents():
            for pod in pods(document):
                seen += 1
                with self.subTest(name):
                    volumes = {v["name"] for v in pod["volumes"]}
                    [init], [main] = pod["initContainers"], pod["containers"]
                    self.assertEqual(init["args"], [m["mountPath"] for m in init["volumeMounts"]])
                    mounts = {m["name"]: m["mountPath"] for m in main["volumeMounts"]}
                    self.assertLessEqual(set(mounts), volumes)
                    place = mounts["elastrun"] + "/bin"
                    self.assertEqual(place, init["args"][0] + "/bin")
                    first = {e["name"]: e.get("value", "") for e in main["env"]}.get("PATH", "")
                    command = main.get("command", [""])[0]
                    self.assertTrue(first.startswith(place + ":") or
                                    command == place + "/torchrun")
                    self.assertNotRegex(first, r"\s")
        self.assertEqual(seen, 5)

    def test_probes_ask_what_is_served_and_exists(self) -> None:
        pages = (ROOT / "lib/agent/web/web_services.cpp").read_text()
        for name, document in documents():
            for pod in pods(document):
                [main] = pod["containers"]
                ports = {p["name"]: p["containerPort"] for p in main["ports"]}
                served = {e["name"]: e.get("value", "") for e in main["env"]}["PET_HTTP"]
                for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
                    probe = main.get(kind, {}).get("httpGet")
                    if probe:
                        with self.subTest(name, kind=kind):
                            self.assertEqual(f"0.0.0.0:{ports[probe['port']]}", served)
                            self.assertIn(f'"{probe["path"]}"', pages)

    def test_policies_go_by_exit_statuses_that_elastrun_has(self) -> None:
        page = (ROOT / "man/elastrun.1").read_text()
        section = re.search(r"^\.Sh EXIT STATUS$(.*?)^\.Sh ", page, re.M | re.S)[1]
        known = {int(n) for n in re.findall(r"^\.It (\d+)$", section, re.M)}
        for name, document in documents():
            for policy in find(document, "podFailurePolicy"):
                with self.subTest(name):
                    actions = {code: rule["action"] for rule in policy["rules"]
                               for code in rule.get("onExitCodes", {}).get("values", [])}
                    self.assertEqual(actions, {2: "FailJob", 93: "FailJob", 75: "Ignore"})
                    self.assertLessEqual(set(actions) - {93}, known)
            for pod in pods(document):  # what Kubernetes asks for beside such a policy
                if list(find(document, "podFailurePolicy")):
                    self.assertEqual(pod["restartPolicy"], "Never")
                self.assertGreater(pod["terminationGracePeriodSeconds"], 30)
