#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes numa-vectors.json: made-up machines, and which CPUs torch.numa gives to each device there.

Needs torch 2.13 or later. Only the functions that read /sys are replaced; the rules are torch's.
Each CPU is [number, node, package, core, cache], a core and a cache named by their smallest CPU.
"""
import json
import pathlib
import random

import torch.numa.binding as binding

RULES = {"node": "_node", "socket": "_socket", "exclusive": "_exclusive", "core-complex": "_core_complex"}


def machine(dice):
    """Packages of nodes of caches of cores of threads, numbered as Linux does: threads apart."""
    packages, nodes = dice.choice([1, 2, 2]), dice.choice([1, 1, 2, 4])
    caches, cores = dice.choice([1, 2, 3]), dice.choice([1, 2, 3, 4])
    threads = dice.choice([1, 2])
    all_cores = packages * nodes * caches * cores
    cpus = []
    for core in range(all_cores):
        node = core // (caches * cores)
        first_of_cache = core // cores * cores
        for thread in range(threads):
            cpus.append([core + thread * all_cores, node, node // nodes, core, first_of_cache])
    return sorted(cpus)


def as_torch(cpus, allowed, devices):
    by_number = {cpu[0]: cpu for cpu in cpus}
    sharing = lambda field: lambda *, logical_cpu_index: {
        cpu[0] for cpu in cpus if cpu[field] == by_number[logical_cpu_index][field]}
    binding._get_allowed_cpu_indices_for_current_thread = lambda: set(allowed)
    binding._get_cpu_indices_for_numa_node_MAYBE_NOT_ALLOWED = lambda *, numa_node_index: {
        cpu[0] for cpu in cpus if cpu[1] == numa_node_index}
    binding._get_logical_cpu_indices_sharing_same_physical_core_as = sharing(3)
    binding._get_logical_cpus_sharing_same_max_level_cache_as = sharing(4)
    binding._get_socket_index_for_cpu = lambda *, cpu_index: by_number[cpu_index][2]
    # Nodes without a CPU for us are left out: torch would stop at the first one, with min() of nothing.
    binding._get_systemwide_numa_node_indices = lambda: {by_number[number][1] for number in allowed}
    binding._get_gpu_count = lambda: len(devices)
    binding._get_numa_node_index_for_gpu_index = lambda *, gpu_index: devices[gpu_index]


def answer(rule, device):
    """The CPUs, or None where torch refuses."""
    try:
        rules = getattr(binding, f"{rule}_get_logical_cpus_to_bind_to")
        return sorted(rules(gpu_index=device)) or None
    except (RuntimeError, ValueError, ZeroDivisionError):
        return None


def case(dice):
    cpus = machine(dice)
    numbers = [cpu[0] for cpu in cpus]
    allowed = sorted(dice.sample(numbers, dice.randint(1, len(numbers)))) if dice.random() < .5 else numbers
    devices = [dice.choice(cpus)[1] for _ in range(dice.randint(1, 8))]
    as_torch(cpus, allowed, devices)
    return {"cpus": [cpu for cpu in cpus if cpu[0] in set(allowed)], "devices": devices,
            **{name: [answer(rule, device) for device in range(len(devices))]
               for name, rule in RULES.items()}}


def main():
    dice = random.Random(20)
    cases = [case(dice) for _ in range(60)]
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
    pathlib.Path(__file__).with_name("numa-vectors.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
