#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A sink of your own: writes metrics and failures to a CSV file, warns when the loss is no number.

    elastrun --worker-lib --metrics 'exec:python3 loss_watch.py loss.csv;window=0' train.py

elastrun writes each record to stdin as a line of JSON (config/records.schema.json), and closes it
at the end. With window=0 every sample comes, without it one for those of a second.
"""
import json
import sys

with open(sys.argv[1], "w", buffering=1) as out:
    for line in sys.stdin:
        record = json.loads(line)
        name, value = record["name"], record.get("value")
        if record["kind"] == "event" and record.get("severity") in ("ERROR", "FATAL"):
            value = 1
        elif record["kind"] != "sample":
            continue
        rank = record.get("attributes", {}).get("rank", -1)
        print(record["time"], record["scope"], name, rank, value, sep=",", file=out)
        if name == "loss" and value is None:  # JSON has neither NaN nor infinity
            print("the loss is not a number", file=sys.stderr)
