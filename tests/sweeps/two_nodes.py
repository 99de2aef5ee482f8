"""A Ray cluster of two nodes, for a test to talk to: says when it is ready, kills the second node when it reads a line,
and ends with its standard input.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
second = cluster.add_node(**node)
print("ready", flush=True)
if sys.stdin.readline():
    cluster.remove_node(second, allow_graceful=False)
    print("gone", flush=True)
    sys.stdin.read()
cluster.shutdown()
