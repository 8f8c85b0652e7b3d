"""msprof-analyze's own results: read as ours are, and an oracle for our steps."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.collector.discover.cluster_outputs import FOLDER
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.forms.cluster import ClusterForm, write_cluster_output
from npuscope.sample_traces.generate import Job, write_job
from tests.analysis.doctor.test_compared_steps import BY_RULE, compare
from tests.prove.peers.msprof_analyze import Peer, install, run_calls

pytestmark = pytest.mark.slow

ASKED = (
    "select rank, name, group_hash, start_ns, elapse_ns, wait_ns from comm_times order by all",
    "select rank, step, computing_ns, stage_ns, bubble_ns from profiler_steps order by all",
    "select rank, group_hash, group_label, global_ranks from groups order by all",
    "select rank, src_rank, dst_rank, variant, op_type, size_bytes from comm_matrix order by all",
    "select rank, name, link, size_bytes, time_ns, packets from comm_links order by all",
    "select rank, tp_rank, pp_rank, dp_rank, ep_rank, world_size from ranks order by rank",
)


@pytest.fixture(scope="module")
def peer() -> Peer:
    found = install()
    if found.why_not:
        reason = f"msprof-analyze could not be install: {found.why_not}"
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)
    return found


@pytest.mark.parametrize("form", ["text", "db"])
def test_the_tool_itself(peer: Peer, tmp_path: Path, form: ClusterForm) -> None:
    job = Job(name="tool", layers=2, dp=2, pp=2, ep=2, seed=21)
    write_job(job, tmp_path / "job", forms=(form,))
    words = ["-m", "all", "-d", str(tmp_path / "job"), "-o", str(tmp_path / "out"), "--force"]
    run_calls(peer, tmp_path, [["cluster", *words]])
    shutil.copytree(tmp_path / "out" / FOLDER, tmp_path / "job" / FOLDER)

    found = compare(tmp_path / "job", tmp_path / "store")
    alone = ingest(tmp_path / "out", tmp_path / "results")

    agreeing = {m for m, one in found.items() if one.agreeing_count == one.compared_count == 8}
    assert len(found) == 7 and agreeing >= found.keys() - BY_RULE[form]
    # Its results are read as those that we write in its place.
    assert alone.is_complete and len(alone.publications) == 4
    write_cluster_output(captures(job), tmp_path / "ours", form)
    ingest(tmp_path / "ours", tmp_path / "ours-store")
    with closing(store.open(tmp_path / "results")) as theirs:
        with closing(store.open(tmp_path / "ours-store")) as ours:
            for query in ASKED:
                assert theirs.execute(query).fetchall() == ours.execute(query).fetchall(), query
